"""The clock of training: synchronised with the device, stopped during evaluation."""

import time
from collections.abc import Mapping
from typing import Any

import torch


class Clock:
    """Counts the seconds spent inside ``with clock:``, and nothing else.

    An accelerator works on after a call returns, so the clock waits for it on both sides: work begun before is not
    counted, work begun inside is.

    Args:
        device: the device that works.
        elapsed: seconds counted so far, when a trial goes on.
        processor: seconds of the processor, over all threads, likewise: on a machine shared with others they tell more.

    Example:
        >>> clock = Clock(torch.device("cpu"), elapsed=1.0)
        >>> with clock:
        ...     _ = torch.ones(3).sum()
        >>> clock.elapsed > 1.0
        True
    """

    def __init__(self, device: torch.device, elapsed: float = 0.0, processor: float = 0.0) -> None:
        self.device = device
        self.elapsed = elapsed
        self.processor = processor
        self._since = 0.0
        self._processor_since = 0.0

    def __enter__(self) -> "Clock":
        synchronize(self.device)
        self._processor_since = time.process_time()
        self._since = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        synchronize(self.device)
        self.elapsed += time.perf_counter() - self._since
        self.processor += time.process_time() - self._processor_since


def clock_of(config: Mapping[str, Any]) -> str:
    """The column of the clock that counts: processor time on a CPU, which others may share; wall time elsewhere.

    Verdicts, rankings, figures and timeouts use it; records and tables have both.

    Example:
        >>> clock_of({"device": "cpu"}), clock_of({"device": "cuda:1"})
        ('processor_time', 'time')
    """
    return "processor_time" if str(config.get("device", "cpu")).startswith("cpu") else "time"


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
