"""POGO's step as sums over columns, the form ``direct-p``, and the leap along a Riemannian gradient.

See :mod:`orthoptim.stiefel.sums` for what the generator yields.
"""

import torch
from torch import Tensor

from orthoptim.stiefel.direction import Direction
from orthoptim.stiefel.geometry import square_norm, subtract_identity, sym
from orthoptim.stiefel.policies import Policy, clip, land
from orthoptim.stiefel.steps import Step, direction_size, rounding, symmetric, trace
from orthoptim.stiefel.sums import ColumnSums, largest


def pogo_columns(
    x: Tensor, direction: Direction, lr: Tensor, policy: Policy, normalized: bool
) -> ColumnSums[tuple[Step, Tensor]]:
    """One POGO step; for the arguments see :func:`orthoptim.stiefel.pogo_step`.

    C depends on the length of the leap, and that on R. C = (XXᴴ − I) − sW + s²RRᴴ saves a third sum, where RRᴴ and
    W = RXᴴ + XRᴴ, which is rounding, are measured. Where G is normalised s‖G‖ ≤ 2τ keeps sW under the roundoff.

    Returns:
        The step, and a finiteness probe: a number per matrix, the same for all pieces, that is finite only if the new
        columns of all pieces are.
    """
    clips, g = policy.clip is not None, direction.matrices
    a, b, *sizes = yield [symmetric(x), x @ g.mH, *([square_norm(g) if normalized else largest(g)] * clips)]
    eta = lr.expand(x.shape[0])
    factor = torch.ones_like(eta) if direction.scale is None else direction.scale
    if clips and not normalized:  # the sum of the pieces' largest entries serves as well as the largest
        entry = sizes[0].clamp_min(torch.finfo(x.dtype).tiny)
        eta, factor = eta * factor * entry, 1 / entry
    half = (0.5 * factor)[:, None, None]
    r = torch.baddbmm((a * half) @ g, b * half, x, alpha=-1)
    w = r @ x.mH if clips and not normalized else None
    e, *more = yield [symmetric(r), *([] if w is None else [w + w.mH, square_norm(g)])]
    size = trace(e)
    if clips:
        square = more[1] if more else sizes[0]
        square = direction_size(square, factor, square.dtype)
        size = size + rounding(square, x.dtype, normalized) if more else torch.maximum(size, 0.25 * square)
    length = clip(eta, size, x.shape[-2], policy)
    s = length.s[:, None, None]
    c = subtract_identity(a).add_(e * s**2)
    if more:
        c.sub_(more[0] * s)
    size = trace(c) + c.shape[-1]  # ‖M‖_F²
    landing = land(c, policy, length)
    q = landing.matrix()
    m = r.mul_(-s).add_(x)
    step = Step(torch.baddbmm(m, q, m), length.clipped, landing.rescued)
    return step, (square_norm(q) * size.clamp_min(0)).sqrt()


def tangent_leap(x: Tensor, g: Tensor, b: Tensor, factor: Tensor, metric: str = "euclidean") -> Tensor:
    """Y = X − factor·D with the Riemannian gradient D of :func:`orthoptim.stiefel.tangent`, given B = XGᴴ.

    The factor is a number, or (B, 1, 1).
    """
    return torch.baddbmm(x - factor * g, factor * (sym(b) if metric == "euclidean" else b), x)
