"""The one place that launches kernels: so that launches can be counted, on tensors without values too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from orthoptim.tensors import has_values

Observer = Callable[[str, tuple[int, ...], int], None]

_observers: list[Observer] = []


def launch(
    kernel: Any, grid: tuple[int, ...], *args: Any, device: torch.device, moved: int = 0, **constants: Any
) -> None:
    """Launch a Triton kernel on the current stream of a device.

    Fake tensors have no memory to work on: with these nothing runs, and the launch is only reported to observers.

    Args:
        kernel: what ``triton.jit`` made.
        grid: the number of programs.
        *args: tensors and numbers.
        device: where.
        moved: bytes that the kernel reads and writes through its table, for observers.
        **constants: what the kernel is compiled for, and options of the compiler.
    """
    for observer in _observers:
        observer(kernel.fn.__name__, grid, moved)
    if all(has_values(a) for a in args if isinstance(a, Tensor)):
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            kernel[grid](*args, **constants)


@contextmanager
def observe_launches(observer: Observer) -> Iterator[None]:
    """A context in which every launch is reported.

    Args:
        observer: called with the name of the kernel, its grid, and the bytes that it reads and writes.
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
