"""The forms of one POGO step. They agree up to rounding; they differ in the products they take.

    R  = ½[(XXᴴ)G − (XGᴴ)X]        relative gradient
    M  = X − sR                    leap; s = η, or less where the policy clips
    C  = MMᴴ − I                   = (XXᴴ − I) + s²RRᴴ exactly, on or off the manifold
    X⁺ = M + Q(C)M                 land

| form | products | best when |
|---|---|---|
| ``direct-n`` | 2·pn² + 2·p²n (one p²n more to clip) | n < 2p |
| ``direct-p`` | 6·p²n (one more to clip) | in between |
| ``gram`` | two passes over n, the rest p×p | p ≪ n and ‖ηG‖ of order one |

The cross terms of MMᴴ cancel because RXᴴ is skew. In ``direct-n`` that holds to rounding of R itself, R being X times a
skew matrix. In ``direct-p`` and ``gram`` R is a difference whose rounding error, of size u‖G‖, is not tangent: a leap
along a huge G that is almost normal would be a leap along that error, and void the guarantees of the policies that
clip. For these ``direct-p`` measures the cross terms (one product more), and ``gram`` bounds s‖G‖ by √(slack/u).

XXᴴ is measured in every step, never replaced by I: that loses the feedback that keeps rounding errors from growing
(9e-3 after 1e5 steps in float32, against 4e-7).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel.geometry import defect, max_modulus, skew, subtract_identity
from orthoptim.stiefel.landing import Policy, clip_length


class Step(NamedTuple):
    """The new point, and which matrices had their leap clipped (``None`` where the policy never clips)."""

    x: Tensor
    clipped: Tensor | None


Form = Callable[[Tensor, Tensor, Tensor, Policy], Step]


def pogo_step(x: Tensor, g: Tensor, lr: Tensor | float, policy: Policy, form: str | None = None) -> Step:
    """One POGO step from X along the direction G.

    Args:
        x: matrices of shape (..., p, n), p ≤ n.
        g: direction, same shape.
        lr: η, a number or a tensor that broadcasts against the batch shape.
        policy: how to land.
        form: one of ``FORMS``; by default the one :func:`choose` picks.

    Example:
        >>> from orthoptim.stiefel.landing import policy
        >>> x, _ = pogo_step(torch.eye(1, 2), torch.tensor([[0.0, 1.0]]), 0.1, policy("half"))
        >>> x
        tensor([[ 0.9987, -0.0499]])
    """
    eta = torch.as_tensor(lr, dtype=x.real.dtype, device=x.device).expand(x.shape[:-2])
    if policy.clip is not None:
        # Without this the entries of RRᴴ overflow long before those of G do. An η·size that overflows is clipped.
        size = max_modulus(g)
        g = g / size.clamp_min(torch.finfo(size.dtype).tiny)[..., None, None]
        eta = eta * size
    return FORMS[form or choose(*x.shape[-2:])](x, g, eta, policy)


def choose(p: int, n: int) -> str:
    """The form with the fewest multiplications that is accurate for any G.

    ``gram`` is not among them: in float32 it loses feasibility as (η‖normal part of G‖)².
    """
    return "direct-n" if n < 2 * p else "direct-p"


def direct_n(x: Tensor, g: Tensor, eta: Tensor, policy: Policy) -> Step:
    """R through the n×n matrix S = Skew(XᴴG)."""
    r = x @ skew(x.mH @ g)
    if policy.clip is None:
        m = x - eta[..., None, None] * r
        return Step(_land(m, defect(m), policy), None)
    return _leap_and_land(x, r, defect(x), eta, policy)


def direct_p(x: Tensor, g: Tensor, eta: Tensor, policy: Policy) -> Step:
    """R through the p×p matrices XXᴴ and XGᴴ; XXᴴ serves again in C."""
    a = x @ x.mH
    r = 0.5 * (a @ g - (x @ g.mH) @ x)
    c = subtract_identity(a)
    if policy.clip is None:
        return _leap_and_land(x, r, c, eta, policy)
    w = r @ x.mH
    return _leap_and_land(x, r, c, eta, policy, w + w.mH)


def gram(x: Tensor, g: Tensor, eta: Tensor, policy: Policy) -> Step:
    """Everything through the 2p×2p Gram matrix of Z = [X; G]: R = TZ, M = X − sTZ, X⁺ = X + DZ."""
    p = x.shape[-2]
    z = torch.cat([x, g], dim=-2)
    k = z @ z.mH
    t = 0.5 * torch.cat([-k[..., :p, p:], k[..., :p, :p]], dim=-1)
    e = t @ k @ t.mH
    if policy.clip is not None:
        info = torch.finfo(x.dtype)
        square = k[..., p:, p:].diagonal(dim1=-2, dim2=-1).real.sum(-1).clamp_min(info.tiny)
        eta = torch.minimum(eta, torch.sqrt(policy.slack / info.eps / square))
    s, clipped = _length(e, eta, policy)
    c = subtract_identity(k[..., :p, :p] + (s**2)[..., None, None] * e)
    q = policy.correction(c)
    leap = -s[..., None, None] * t
    d = leap + q @ leap
    d[..., :p] += q
    return Step(x + d @ z, clipped)


FORMS: dict[str, Form] = {"direct-n": direct_n, "direct-p": direct_p, "gram": gram}


def _leap_and_land(x: Tensor, r: Tensor, c: Tensor, eta: Tensor, policy: Policy, cross: Tensor | None = None) -> Step:
    """From X, R and XXᴴ − I: MMᴴ − I = (XXᴴ − I) − s·cross + s²RRᴴ costs no product with M."""
    e = r @ r.mH
    s, clipped = _length(e, eta, policy, cross)
    s = s[..., None, None]
    c = c + s**2 * e if cross is None else c + s**2 * e - s * cross
    return Step(_land(x - s * r, c, policy), clipped)


def _length(e: Tensor, eta: Tensor, policy: Policy, cross: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    if policy.clip is None:
        return eta, None
    s = clip_length(e, eta, policy, cross)
    return s, s < eta


def _land(m: Tensor, c: Tensor, policy: Policy) -> Tensor:
    return m + policy.correction(c) @ m
