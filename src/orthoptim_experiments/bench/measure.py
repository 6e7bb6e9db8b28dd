"""Timing: contenders take turns in one process; minima and medians, and the memory of a step."""

import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler is chatty on stderr


class Timing(NamedTuple):
    """Seconds of one step, and the bytes it allocates at most beyond what it found."""

    least: float
    median: float
    extra_bytes: int


@contextmanager
def silent_torch() -> Iterator[None]:
    """Within it, torch's warnings about its own code (the compiler's, the profiler's) are not shown."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # of the processes that compile
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch(\.|$)")
        yield


def measure(
    steps: Mapping[str, Callable[[], Any]], *, seconds: float = 5.0, rounds: int = 5, device: str = "cpu"
) -> dict[str, Timing]:
    """Time each step in turn, again and again, until the time is used up.

    The machine's noise then hits all alike, and the ratio of two minima (or medians) is meaningful where an absolute
    time is not. The first two calls of each are warm-up: they create state and compile. A contender that is so slow
    that two steps use up its time is timed twice.
    """
    samples: dict[str, list[float]] = {name: [] for name in steps}
    extra = {}
    for name, step in steps.items():
        step()
        step()
        extra[name] = extra_device_bytes(step) if device.startswith("cuda") else extra_bytes(step)
    end = time.perf_counter() + seconds * len(steps)
    done = 0
    while done < rounds or time.perf_counter() < end:
        for name, step in steps.items():
            if done < 2 or sum(samples[name]) < max(seconds, done * seconds / rounds):
                samples[name].append(_timed(step, device))
        done += 1
    return {name: Timing(min(times), statistics.median(times), extra[name]) for name, times in samples.items()}


def _timed(step: Callable[[], Any], device: str) -> float:
    if device.startswith("cuda"):
        return _timed_by_events(step)
    _synchronize(device)
    start = time.perf_counter()
    step()
    _synchronize(device)
    return time.perf_counter() - start


def _timed_by_events(step: Callable[[], Any]) -> float:
    """From when the device begins with the step to when it has done it; the host runs ahead as in training."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def extra_device_bytes(step: Callable[[], Any]) -> int:
    """The same on a CUDA device, from its allocator."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def extra_bytes(step: Callable[[], Any]) -> int:
    """The peak of what one step holds at a time beyond what was there before, from torch's allocation events."""
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
