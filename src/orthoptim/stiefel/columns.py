"""Steps on some of the columns of X, where products over n are sums over pieces; POGO's is the form ``direct-p``.

A coroutine of this kind is given some columns of matrices X and of a direction G (B, p, n′). It yields lists of partial
quantities, small ones (p×p, or one number per matrix), and is sent :class:`Sums` of them over all pieces. What it
returns is the new columns, and for each matrix a witness: a number that is the same for all pieces and that is finite
only if the new columns of all pieces are.

The factor of G is not known before the first sums are (VAdam's depends on ‖∇f‖): they are of G without it.
"""

from collections.abc import Generator
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel.geometry import max_entry, square_norm, subtract_identity, sym
from orthoptim.stiefel.policies import Policy, clip, land
from orthoptim.stiefel.steps import Step, direction_size, rounding, symmetric, trace


class Sums(NamedTuple):
    """Sums over all pieces, and the factor of G for each matrix (None: one)."""

    tensors: list[Tensor]
    scale: Tensor | None


def pogo_columns(
    x: Tensor, g: Tensor, lr: Tensor, policy: Policy, normalized: bool
) -> Generator[list[Tensor], Sums, tuple[Step, Tensor]]:
    """One POGO step; for the arguments see :func:`orthoptim.stiefel.pogo_step`.

    C depends on the length of the leap, and that on R. C = (XXᴴ − I) − sW + s²RRᴴ saves a third sum, where RRᴴ and
    W = RXᴴ + XRᴴ, which is rounding, are measured. Where G is normalised s‖G‖ ≤ 2τ keeps sW under the roundoff.
    """
    clips = policy.clip is not None
    (a, b, *sizes), scale = yield [symmetric(x), x @ g.mH, *([square_norm(g) if normalized else largest(g)] * clips)]
    eta = lr.expand(x.shape[0])
    factor = torch.ones_like(eta) if scale is None else scale
    if clips and not normalized:  # the sum of the pieces' largest entries serves as well as the largest
        entry = sizes[0].clamp_min(torch.finfo(x.dtype).tiny)
        eta, factor = eta * factor * entry, 1 / entry
    half = (0.5 * factor)[:, None, None]
    r = torch.baddbmm((a * half) @ g, b * half, x, alpha=-1)
    w = r @ x.mH if clips and not normalized else None
    (e, *more), _ = yield [symmetric(r), *([] if w is None else [w + w.mH, square_norm(g)])]
    size = trace(e)
    if clips:
        square = direction_size(more[1] if more else sizes[0], factor)
        size = size + rounding(square, x.dtype, normalized) if more else torch.maximum(size, 0.25 * square)
    s, clipped, leap = clip(eta, size, x.shape[-2], policy)
    s = s[:, None, None]
    c = subtract_identity(a).add_(e * s**2)
    if more:
        c.sub_(more[0] * s)
    size = trace(c) + c.shape[-1]  # ‖M‖_F²
    q, rescued = land(c, policy, leap)
    m = r.mul_(-s).add_(x)
    return Step(torch.baddbmm(m, q, m), clipped, rescued), (square_norm(q) * size.clamp_min(0)).sqrt()


def tangent_leap(x: Tensor, g: Tensor, b: Tensor, factor: Tensor, metric: str = "euclidean") -> Tensor:
    """Y = X − factor·D with the Riemannian gradient D of :func:`orthoptim.stiefel.tangent`, given B = XGᴴ."""
    factor = factor.reshape(-1, 1, 1)
    return torch.baddbmm(x - factor * g, factor * (sym(b) if metric == "euclidean" else b), x)


def witness(c: Tensor, q: Tensor) -> Tensor:
    """A number for each matrix that is finite only if the entries of M + QM, MMᴴ = I + C, are."""
    square = c.diagonal(dim1=-2, dim2=-1).real.sum(-1) + c.shape[-1]  # ‖M‖²
    return square_norm(q).sqrt() * square.clamp_min(0).sqrt()


def largest(g: Tensor) -> Tensor:
    """The largest entry of each matrix; zero where there are none."""
    return max_entry(g) if g.numel() else g.real.new_zeros(g.shape[0])
