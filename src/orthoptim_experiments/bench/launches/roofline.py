"""A model of the time of a step on a GPU, from what it launches. A model, not a measurement.

The host issues operations one after another, the device works through them, and a wait lets the host catch up. A kernel
takes the longest of its launch floor, its bytes over the bandwidth (of the L2 cache where they fit), and its FLOPs over
the peak, of which products reach what their tiles fill of the device. Peaks are those of NVIDIA's data sheets; float32
products are IEEE, not TF32.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from orthoptim_experiments.bench.launches.counter import Operation


@dataclass(frozen=True)
class GPU:
    """Peaks of a device, in bytes and FLOPs per second."""

    bandwidth: float
    float32: float
    tf32: float
    bfloat16: float
    processors: int
    cache: float
    cache_bandwidth: float


GPUS = {
    "A100": GPU(1.555e12, 19.5e12, 156e12, 312e12, 108, 40e6, 4e12),
    "H100": GPU(3.35e12, 67e12, 495e12, 989e12, 132, 50e6, 7e12),
}

ACHIEVED = 0.85
"""Of peaks, in practice."""

CALL, MORE_LAUNCHES, VIEW, WAIT = 8e-6, 3e-6, 1e-6, 10e-6
"""Seconds of the host: a call that launches, each further launch in it, a view, a wait for the device."""

FLOOR, PRODUCT_FLOOR = 2.5e-6, 5e-6
"""Seconds of the device: the least that a kernel takes, and a product."""


@dataclass(frozen=True)
class Modelled:
    """Seconds of a step: in all, of the device alone, of the host alone."""

    step: float
    device: float
    host: float


def modelled(operations: Iterable[Operation], gpu: GPU, tf32: bool = False) -> Modelled:
    """The time of a step, by the model.

    Args:
        operations: of the step, in order.
        gpu: what it runs on.
        tf32: whether products of float32 are reduced.
    """
    host = device = busy = issued = 0.0
    for operation in operations:
        if operation.what in ("view", "host"):
            cost = VIEW
        elif operation.what in ("h2d", "d2h", "sync"):
            cost = CALL
        else:
            cost = CALL + MORE_LAUNCHES * (operation.launches - 1)
        issued += cost
        host += cost
        if operation.what in ("h2d", "d2h", "sync"):
            host = device = max(host, device) + WAIT
        elif operation.launches:
            seconds = kernel_seconds(operation, gpu, tf32)
            device = max(host, device) + seconds
            busy += seconds
    return Modelled(max(host, device), busy, issued)


def kernel_seconds(operation: Operation, gpu: GPU, tf32: bool = False) -> float:
    """What the kernels of one operation take on the device."""
    moved = operation.read + operation.written
    if operation.what == "decomposition":
        return operation.launches * 6e-6
    if operation.what == "gemm":
        seconds = max(_product_seconds(operation, gpu, tf32), moved / (ACHIEVED * gpu.bandwidth), PRODUCT_FLOOR)
        return seconds + FLOOR * (operation.launches - 1)
    bandwidth = gpu.cache_bandwidth if moved < gpu.cache / 2 else ACHIEVED * gpu.bandwidth
    return max(moved / bandwidth, FLOOR * operation.launches)


def _product_seconds(operation: Operation, gpu: GPU, tf32: bool) -> float:
    """FLOPs over the peak, with the padding of tiles, and with the processors that they leave idle."""
    batch, rows, columns, inner = operation.shape
    half = operation.dtype in (torch.bfloat16, torch.float16)
    peak = gpu.bfloat16 if half else gpu.tf32 if tf32 else gpu.float32
    if operation.dtype in (torch.float64, torch.complex128):
        peak = gpu.float32 / 2
    factor = 4 if operation.dtype is not None and operation.dtype.is_complex else 1
    least = min(rows, columns)
    tile = 32 if least <= 32 else 64 if least < 256 else 128
    tiles = batch * math.ceil(rows / tile) * math.ceil(columns / tile)
    padded = 2 * factor * tiles * tile * tile * math.ceil(inner / 8) * 8
    parts = tiles * max(1, min(inner // 256, math.ceil(gpu.processors / tiles)))
    filled = parts / gpu.processors
    used = filled if filled < 1 else max(filled / math.ceil(filled), 0.6)
    return padded / (peak * ACHIEVED * min(1.0, used))
