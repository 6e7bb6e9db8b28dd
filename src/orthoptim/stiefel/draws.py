"""Random subspaces that are a pure function of (seed, stream, step).

A generator object would have to be saved, would differ between devices, and would make a matrix's draws depend on
which other matrices are drawn with it. Hashing counters has none of these problems: draws are the same on every replica
and device (of those with float64, and of those without), for a matrix alone or in a bucket, and they trace.
"""

import math

import torch
from torch import Tensor

from orthoptim.stiefel.points import row_qr
from orthoptim.tensors import widest_dtype

# splitmix64 (Steele, Lea & Flood 2014), in wrapping int64 arithmetic
_GOLDEN = -7046029254386353131
_MIX1 = -4658895280553007687
_MIX2 = -7723592293110705685
_UNIFORM_BITS = {torch.float64: 53, torch.float32: 23}


def mix(key: Tensor) -> Tensor:
    """splitmix64's output function: a bijection of int64 whose results look independent."""
    z = key + _GOLDEN
    z = (z ^ _shift_right(z, 30)) * _MIX1
    z = (z ^ _shift_right(z, 27)) * _MIX2
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def fingerprint(x: Tensor) -> Tensor:
    """An int64 for each matrix, from the bits of its entries: what tells one matrix's stream from another's."""
    real = torch.view_as_real(x) if x.is_complex() else x
    wide = real.to(widest_dtype(x.device))
    bits = wide.view(torch.int64) if wide.itemsize == 8 else wide.view(torch.int32).to(torch.int64)
    bits = bits.flatten(start_dim=x.ndim - 2)
    place = torch.arange(bits.shape[-1], dtype=torch.int64, device=x.device)
    return mix((mix(bits) ^ mix(place)).sum(-1))


def uniform(stream: Tensor, t: Tensor, seed: int, count: int) -> Tensor:
    """``count`` numbers in (0, 1) for each stream at step t; shape (B, count). In float64, if the device has it."""
    wide = widest_dtype(stream.device)
    width = _UNIFORM_BITS[wide]
    key = mix(mix(stream ^ seed) ^ t.to(torch.int64))
    place = torch.arange(count, dtype=torch.int64, device=stream.device)
    bits = _shift_right(mix(key[..., None] ^ mix(place)), 64 - width)
    return (bits.to(wide) + 0.5) * 2.0**-width


def gaussian(stream: Tensor, t: Tensor, seed: int, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Standard normal matrices (B, *shape), real or complex, by Box–Muller."""
    u = uniform(stream, t, seed, 2 * shape[0] * shape[1]).reshape(*stream.shape, 2, *shape)
    radius, angle = torch.sqrt(-2 * torch.log(u[..., 0, :, :])), 2 * math.pi * u[..., 1, :, :]
    if dtype.is_complex:
        return torch.complex(radius * torch.cos(angle), radius * torch.sin(angle)).to(dtype)
    return (radius * torch.cos(angle)).to(dtype)


def subspace(stream: Tensor, t: Tensor, seed: int, r: int, n: int, dtype: torch.dtype) -> Tensor:
    """Uniformly random (B, r, n) with orthonormal rows."""
    return row_qr(gaussian(stream, t, seed, (r, n), dtype))


def columns(stream: Tensor, t: Tensor, seed: int, r: int, n: int) -> Tensor:
    """R distinct random columns out of n, as indices (B, r)."""
    return uniform(stream, t, seed, n).argsort(-1)[..., :r]
