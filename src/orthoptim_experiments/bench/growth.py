"""The time of a step against the number of matrices, and against their size."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

import orthoptim as oo
from orthoptim_experiments.bench.measure import measure
from orthoptim_experiments.bench.workloads import Workload


class Growth(NamedTuple):
    """Seconds of a step for each size, and the exponent fitted to the last ones."""

    title: str
    sizes: list[int]
    seconds: list[float]
    exponent: float


def curves(device: str = "cpu", seconds: float = 0.5) -> list[Growth]:
    """Time against the number of 3×3 and of 64×64 matrices, and against n for square ones."""
    return [
        _curve("number of 3×3", [10**k for k in range(2, 7)], lambda k: (k, 3, 3), 3, device, seconds),
        _curve("number of 64×64", [4**k for k in range(7)], lambda k: (k, 64, 64), 4, device, seconds),
        _curve("n of one n×n", [64, 128, 256, 512, 1024], lambda n: (n, n), 3, device, seconds),
    ]


def _curve(title: str, sizes: list[int], shape: object, last: int, device: str, seconds: float) -> Growth:
    assert callable(shape)
    times = []
    for size in sizes:
        params = Workload(title, [shape(size)]).parameters(device)
        step = oo.POGO(params, 0.1).step
        times.append(measure({title: step}, seconds=seconds, device=device)[title].least)
    return Growth(title, sizes, times, fitted_exponent(sizes[-last:], times[-last:]))


def fitted_exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Slope of log time against log size, by least squares.

    Example:
        >>> round(fitted_exponent([1, 2, 4], [3, 12, 48]), 3)
        2.0
    """
    x, y = (torch.tensor([math.log(v) for v in values], dtype=torch.float64) for values in (sizes, times))
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())
