"""The forms of one POGO step. They agree up to rounding; they differ in the products they take.

    R  = ½[(XXᴴ)G − (XGᴴ)X]        relative gradient
    M  = X − sR                    leap; s = η, or less where the policy clips
    C  = MMᴴ − I                   = (XXᴴ − I) + s²RRᴴ exactly, on or off the manifold
    X⁺ = M + Q(C)M                 land

| form | products | best when |
|---|---|---|
| ``direct-n`` | 2·pn² + 2·p²n (one p²n more to clip) | n < 2p |
| ``direct-p`` | 6·p²n (one more to clip, where G is not normalised) | in between |
| ``gram`` | 5·p²n and p×p ones | p ≪ n and G is normalised |
| ``tiny`` | entry by entry, over the batch | p, n ≤ 4 |

:func:`orthoptim.stiefel.plan.choose` picks one.

The cross terms of MMᴴ cancel because RXᴴ is skew. In ``direct-n`` and ``tiny`` that holds to rounding of R itself, R
being X times a skew matrix. In ``direct-p`` and ``gram`` R is a difference whose rounding error, of size u‖G‖, is not
tangent: a leap along a huge G that is almost normal would be a leap along that error, and void the guarantees of the
policies that clip. For these ``direct-p`` measures the cross terms, or, where G is normalised, bounds s‖G‖ by slack/u,
and ``gram`` bounds it by √(slack/u).

XXᴴ is measured in every step, never replaced by I: that loses the feedback that keeps rounding errors from growing
(9e-3 after 1e5 steps in float32, against 4e-7).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel.geometry import max_entry, square_norm, subtract_identity
from orthoptim.stiefel.landing import Policy, clip_length
from orthoptim.stiefel.plan import SYMMETRIC_FROM, SYMMETRIC_WORK, choose
from orthoptim.stiefel.unrolled import unrolled


class Step(NamedTuple):
    """The new point, and which matrices had their leap clipped (``None`` where the policy never clips)."""

    x: Tensor
    clipped: Tensor | None


class Leap(NamedTuple):
    """What every form is given: matrices and direction (B, p, n), and per matrix η and the scale to multiply G by.

    Without the scale 1/max|G| the entries of RRᴴ overflow long before those of G do. It is folded into small factors,
    so that it costs no pass over G; an η·max|G| that overflows is clipped.
    """

    x: Tensor
    g: Tensor
    eta: Tensor
    scale: Tensor | float  # (B, 1, 1)
    normalized: bool  # whether ‖scale·G‖_F is of order one


Form = Callable[[Leap, Policy], Step]


def pogo_step(
    x: Tensor,
    g: Tensor,
    lr: Tensor | float,
    policy: Policy,
    form: str | None = None,
    *,
    scale: Tensor | None = None,
    normalized: bool = False,
) -> Step:
    """One POGO step from X along the direction G.

    Args:
        x: matrices of shape (..., p, n), p ≤ n.
        g: direction, same shape.
        lr: η, a number or a tensor that broadcasts against the batch shape.
        policy: how to land.
        form: one of ``FORMS``; by default the one :func:`choose` picks.
        scale: a factor of G for each matrix, of the batch shape.
        normalized: whether the norm of G, with its factor, is of order one, as VAdam's is.

    Example:
        >>> from orthoptim.stiefel.landing import policy
        >>> x, _ = pogo_step(torch.eye(1, 2), torch.tensor([[0.0, 1.0]]), 0.1, policy("half"))
        >>> x
        tensor([[ 0.9987, -0.0499]])
    """
    batch, (p, n) = x.shape[:-2], x.shape[-2:]
    eta = torch.as_tensor(lr, dtype=x.real.dtype, device=x.device).expand(batch).reshape(-1)
    x, g = x.reshape(-1, p, n), g.reshape(-1, p, n)
    factor: Tensor | float = 1.0 if scale is None else scale.reshape(-1, 1, 1)
    if policy.clip is not None and not normalized:
        size = max_entry(g).clamp_min(torch.finfo(eta.dtype).tiny)
        eta = eta * size if scale is None else eta * scale.reshape(-1) * size
        factor = (1 / size)[:, None, None]
    step = FORMS[form or choose(p, n, normalized)](Leap(x, g, eta, factor, normalized), policy)
    return Step(step.x.reshape(*batch, p, n), None if step.clipped is None else step.clipped.reshape(batch))


def direct_n(leap: Leap, policy: Policy) -> Step:
    """R through the n×n matrix S = Skew(XᴴG)."""
    x, g, eta, scale, _ = leap
    s = x.mH @ g
    skew = (s - s.mH).mul_(0.5 * scale)
    # square matrices: into the memory of s, which is free again; fresh memory costs as much as half a product
    r = torch.bmm(x, skew, out=s) if s.shape == x.shape else x @ skew
    if policy.clip is None:
        m = torch.addcmul(x, r, -eta[:, None, None], out=r)
        return Step(_land(m, subtract_identity(symmetric(m)), policy), None)
    return _leap_and_land(x, r, subtract_identity(symmetric(x)), eta, policy)


def direct_p(leap: Leap, policy: Policy) -> Step:
    """R through the p×p matrices XXᴴ and XGᴴ; XXᴴ serves again in C."""
    x, g, eta, scale, normalized = leap
    a = symmetric(x)
    r = torch.baddbmm((a * (0.5 * scale)) @ g, (x @ g.mH).mul_(0.5 * scale), x, alpha=-1)
    c = subtract_identity(a)
    if policy.clip is None:
        return _leap_and_land(x, r, c, eta, policy)
    if normalized:  # the cross terms stay below the slack for any sensible η
        return _leap_and_land(x, r, c, torch.minimum(eta, _reach(policy, g, scale)), policy)
    w = r @ x.mH
    return _leap_and_land(x, r, c, eta, policy, w + w.mH)


def gram(leap: Leap, policy: Policy) -> Step:
    """Everything through A = XXᴴ, B = XGᴴ and N = GGᴴ: R = ½(AG − BX), so RRᴴ and X⁺ = X + DX + FG need no R."""
    x, g, eta, scale, _ = leap
    a, b, n = symmetric(x), (x @ g.mH) * scale, symmetric(g) * scale * scale
    # RRᴴ = ¼[A(NA − BᴴBᴴ) − B(BA − ABᴴ)]: with A = Aᴴ, BX·(AG)ᴴ = B·XGᴴ·A = BBA
    ba, bh = b @ a, b.mH
    e = 0.25 * torch.baddbmm(a @ (n @ a - bh @ bh), b, ba - ba.mH, alpha=-1)
    if policy.clip is not None:
        info = torch.finfo(x.dtype)
        square = n.diagonal(dim1=-2, dim2=-1).real.sum(-1).clamp_min(info.tiny)
        eta = torch.minimum(eta, torch.sqrt(policy.slack / info.eps / square))
    s, clipped = _length(e, eta, policy)
    half = (0.5 * s)[:, None, None]
    q = policy.correction(subtract_identity(a + (2 * half) ** 2 * e))
    # X⁺ = (I + Q)(X − s/2·(AG − BX)) = X + [Q + s/2·(I+Q)B]X − [s/2·(I+Q)A]G
    d = q + half * (b + q @ b)
    f = (half * scale) * (a + q @ a)
    return Step(torch.baddbmm(torch.baddbmm(x, d, x), f, g, alpha=-1), clipped)


def tiny(leap: Leap, policy: Policy) -> Step:
    """Entry by entry, each a vector over the batch, which is best the last dim in memory."""
    scale = leap.scale[:, 0, 0] if isinstance(leap.scale, Tensor) else leap.scale
    tables = leap.x.permute(1, 2, 0), leap.g.permute(1, 2, 0)  # (p, n, B)
    x, g = ([list(row.unbind(0)) for row in a.unbind(0)] for a in tables)
    if torch.compiler.is_compiling():
        table, clipped = unrolled(x, g, leap.eta, scale, policy)
        return Step(torch.stack([torch.stack(row, -1) for row in table], 1), clipped)
    new = tables[0].new_empty(tables[0].shape)
    _, clipped = unrolled(x, g, leap.eta, scale, policy, new)
    return Step(new.permute(2, 0, 1), clipped)


FORMS: dict[str, Form] = {"direct-n": direct_n, "direct-p": direct_p, "gram": gram, "tiny": tiny}


def symmetric(x: Tensor) -> Tensor:
    """XXᴴ by blocks: the upper half is the adjoint of the lower, which saves up to 3/8 of the product."""
    p = x.shape[-2]
    return _symmetric(x, 2 if p >= SYMMETRIC_FROM and p * x.numel() >= SYMMETRIC_WORK else 0)


def _symmetric(x: Tensor, levels: int) -> Tensor:
    if levels == 0:
        return x @ x.mH
    p = x.shape[-2]
    upper, lower = x[..., : p // 2, :], x[..., p // 2 :, :]
    block = lower @ upper.mH
    first, last = _symmetric(upper, levels - 1), _symmetric(lower, levels - 1)
    return torch.cat([torch.cat([first, block.mH], -1), torch.cat([block, last], -1)], -2)


def _leap_and_land(x: Tensor, r: Tensor, c: Tensor, eta: Tensor, policy: Policy, cross: Tensor | None = None) -> Step:
    """From X, R and XXᴴ − I: MMᴴ − I = (XXᴴ − I) − s·cross + s²RRᴴ costs no product with M."""
    e = symmetric(r)
    s, clipped = _length(e, eta, policy, cross)
    s = s[:, None, None]
    c.addcmul_(e, s**2)
    if cross is not None:
        c.addcmul_(cross, s, value=-1)
    return Step(_land(torch.addcmul(x, r, -s, out=r), c, policy), clipped)


def _reach(policy: Policy, g: Tensor, scale: Tensor | float) -> Tensor:
    info = torch.finfo(g.dtype)
    size = square_norm(g).sqrt() * (scale[:, 0, 0] if isinstance(scale, Tensor) else scale)
    return policy.slack / info.eps / size.clamp_min(info.tiny)


def _length(e: Tensor, eta: Tensor, policy: Policy, cross: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    if policy.clip is None:
        return eta, None
    slope = None if cross is None else square_norm(cross).sqrt()
    s = clip_length(square_norm(e).sqrt(), eta, policy, slope)
    return s, s < eta


def _land(m: Tensor, c: Tensor, policy: Policy) -> Tensor:
    if policy.half:  # Q = −½C need not be formed
        return torch.baddbmm(m, c, m, alpha=-0.5)
    return torch.baddbmm(m, policy.correction(c), m)
