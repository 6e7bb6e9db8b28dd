"""Kinds of gradients, from harmless to hostile, of one matrix X (p×n) in double precision."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Kind = Callable[[Tensor, torch.Generator], Tensor]


class Gradient(NamedTuple):
    """The gradient of one parameter.

    Attributes:
        kinds: those of its matrices, in turn; ``("none",)`` for no gradient, ``("sparse",)`` for a sparse one.
        layout: how it lies in memory.
    """

    kinds: tuple[str, ...]
    layout: str = "plain"


def noise(x: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian entries."""
    return torch.randn(x.shape, dtype=x.dtype, generator=generator)


def tangent(x: Tensor, generator: torch.Generator) -> Tensor:
    """XA with A skew-Hermitian, of norm one."""
    a = torch.randn(x.shape[-1], x.shape[-1], dtype=x.dtype, generator=generator)
    r = x @ (a - a.mH)
    return r / torch.linalg.matrix_norm(r).clamp_min(1e-30)


def normal(x: Tensor, generator: torch.Generator) -> Tensor:
    """HX with H Hermitian: no part of it is tangent."""
    h = torch.randn(x.shape[-2], x.shape[-2], dtype=x.dtype, generator=generator)
    return (h + h.mH) @ x


def _scaled(kind: Kind, factor: float) -> Kind:
    return lambda x, generator: factor * kind(x, generator)


def _almost_normal(size: float) -> Kind:
    return lambda x, generator: size * x + 3 * tangent(x, generator)


def _with_entry(value: complex) -> Kind:
    def kind(x: Tensor, generator: torch.Generator) -> Tensor:
        g = noise(x, generator)
        place = int(torch.randint(g.numel(), (), generator=generator))
        g.view(-1)[place] = value if g.is_complex() else value.real
        return g

    return kind


HARMLESS = ("noise", "tangent", "normal", "zero")
"""Those that no sensible learning rate makes a problem of."""

POISON = ("nan", "nan_everywhere", "nan_imaginary", "inf", "minus_inf")
"""Those that are not finite; in half precision there are more."""

KINDS: dict[str, Kind] = {
    "zero": lambda x, _: torch.zeros_like(x),
    "noise": noise,
    "noise_1e3": _scaled(noise, 1e3),
    "noise_1e6": _scaled(noise, 1e6),
    "noise_1e15": _scaled(noise, 1e15),
    "noise_1e-6": _scaled(noise, 1e-6),
    "noise_1e-20": _scaled(noise, 1e-20),
    "huge": _scaled(noise, 1e30),
    "small": _scaled(noise, 1e-30),
    "denormal": _scaled(noise, 1e-40),
    "denormal_double": _scaled(noise, 1e-310),
    "tangent": tangent,
    "tangent_1e3": _scaled(tangent, 1e3),
    "normal": normal,
    "normal_1e12": _scaled(normal, 1e12),
    "point": lambda x, _: x.clone(),
    **{f"almost_normal_1e{k}": _almost_normal(10.0**k) for k in range(6, 14)},
    "nan": _with_entry(complex(math.nan, 0)),
    "nan_everywhere": lambda x, _: torch.full_like(x, math.nan),
    "nan_imaginary": _with_entry(complex(math.nan, math.nan)),
    "inf": _with_entry(complex(math.inf, 1)),
    "minus_inf": _with_entry(complex(-math.inf, -1)),
}


def gradients_of(matrices: Tensor, kinds: tuple[str, ...], generator: torch.Generator) -> Tensor:
    """Gradients of matrices (B, p, n), the kinds in turn."""
    return torch.stack([KINDS[kinds[i % len(kinds)]](x, generator) for i, x in enumerate(matrices)])


def _transposed(g: Tensor) -> Tensor:
    return g.mT.contiguous().mT


def _expanded(g: Tensor) -> Tensor:
    return g[..., :1, :].expand(g.shape)


def _strided(g: Tensor) -> Tensor:
    room = g.new_zeros(*g.shape[:-1], 2 * g.shape[-1])
    room[..., ::2] = g
    return room[..., ::2]


def _conjugate(g: Tensor) -> Tensor:
    return g.conj_physical().conj() if g.is_complex() else g


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": Tensor.contiguous,
    "transposed": _transposed,
    "expanded": _expanded,
    "strided": _strided,
    "conjugate": _conjugate,
}
"""How a tensor lies in memory; of an expanded one all rows are the first."""
