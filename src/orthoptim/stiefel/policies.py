"""Landing policies: how a leap M is brought back to the manifold.

A policy is decisions made from numbers per matrix and from p×p quantities alone:

- ``clip``: τ, the longest leap it allows, in the Frobenius norm ‖sR‖_F (``None``: any);
- ``correction``: Q(C), with C = MMᴴ − I, such that X⁺ = M + QM. Adding QM to M is more accurate than multiplying M by
  I + Q (3.4e-6 against 5.5e-6 at 256×256 in float32);
- ``half``: whether Q is just −½C;
- ``reach``: the largest eigenvalue of MMᴴ that is landed as it is; what is beyond is scaled down first.

| name | clip | λ | distance ‖XXᴴ−I‖₂ |
|---|---|---|---|
| ``safe`` | 1 | ½ | ≤ ½ for any gradients, forever; ≤ ¾ξ⁴ while ξ = η‖G‖_F ≤ 1 |
| ``strict`` | ½ | ½, three times | ≤ 1.5e-6 and rounding for any gradients, forever |
| ``half`` | – | ½ | ≤ ¾ξ⁴ while ξ ≤ √2; leaves the manifold past 2 |
| ``root`` | – | the paper's root of P | the paper's |
| ``argmin`` | – | minimises P | least of all single landings |
| ``newton-schulz`` | – | ½, k times | order ξ^(2^(k+1)) |

The guarantee of the policies that clip rests on one principle: **C is measured where the step lands**, from the M that
will be landed, so that whatever rounding, overflow, reduced precision or the user did to X or R is seen.

*The bound.* One landing with λ = ½ maps an eigenvalue c of C to f(c) − 1, where

    f(c) = (1 − c/2)²(1 + c) = 1 − ¾c² + ¼c³.

f maps [−½, 1] into [½, 1]. If spec(XXᴴ) ⊂ [1−δ, 1] with δ ≤ ½, then MMᴴ = XXᴴ + s²RRᴴ, because RXᴴ is skew, and
0 ⪯ s²RRᴴ ⪯ s²‖R‖_F² I ⪯ τ²I, so spec(C) ⊂ [−δ, τ²] ⊂ [−½, 1], and spec(X⁺X⁺ᴴ) ⊂ [1−δ′, 1] with
δ′ = max(δ²(3+δ)/4, τ⁴(3−τ²)/4). So δ ≤ ½ is invariant for τ ≤ 1; with τ = ½ and three landings 1.5e-6 is.

*In the Frobenius norm*, with Δ = I − XXᴴ ⪰ 0: tr(RRᴴΔ) ≥ 0, so ‖C‖_F² = ‖s²RRᴴ − Δ‖_F² ≤ τ⁴ + ‖Δ‖_F²; and
|f(c) − 1| ≤ ½|c| on [−½, 1], so ‖Δ⁺‖_F ≤ ½‖C‖_F. Hence ‖XXᴴ − I‖_F ≤ 1/√3 is invariant, for any p.

*Rescue.* A matrix that somebody wrote far off the manifold has an eigenvalue of MMᴴ beyond 1 + τ². It is seen on the
diagonal of C; then M is first scaled by ρ = √(2/μ), where μ = p·max diag MMᴴ ≥ tr MMᴴ ≥ λmax(MMᴴ). Now
spec(C′) ⊂ (−1, 1], f maps that into (0, 1], and from XXᴴ ⪯ I no further leap exceeds 1 + τ²: a matrix is scaled once
(a large one in steps of 1/100). After that every eigenvalue grows, the small ones by 9/4 in a step: a matrix of full
rank comes back in about log(pκ²)/log(9/4) + 4 steps. An eigenvalue beyond 2 that the diagonal does not show is landed
as it is; if it grows, the diagonal shows it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel import polynomial
from orthoptim.stiefel.geometry import as_real, square_norm

_FAR = 0.36
"""‖C‖_F² beyond this and that of the leap is not explained by steps from the manifold: 1/3 and rounding."""

_LEAST_SCALE = 1e-2
"""How much a rescue scales down in one step: ρM is computed as M + (ρ − 1)M, which loses u/ρ."""

LONGEST = 10.0
"""‖sR‖_F/√p beyond which a leap is cut off by any policy: from a matrix that is far away, leaps are far too long.

The form ``tiny`` cuts off only where the policy clips: it saves the passes over memory.
"""


class Policy(NamedTuple):
    """One way of landing."""

    clip: float | None
    correction: Callable[[Tensor], Tensor]
    half: bool = False
    reach: float = 2.1  # 1 + τ² and a margin for rounding


class Rescue(NamedTuple):
    """What is done to each matrix before it is landed, one value per matrix.

    Attributes:
        scale: ρ, for M ← ρM; 1 in every ordinary step.
        lands: 1, or 0 where even ρM is too far away to be landed.
        flag: which matrices no sequence of ordinary steps explains.
    """

    scale: Tensor
    lands: Tensor
    flag: Tensor


def rescue(top: Tensor, p: int, policy: Policy, size: Tensor | None, leap: Tensor | None) -> Rescue:
    """See the module; no branch, and exactly ρ = 1 in ordinary steps.

    Args:
        top: the largest entry on the diagonal of C.
        p: the size of C.
        policy: how to land.
        size: ‖C‖_F², where the policy clips.
        leap: (s‖R‖_F)², where the policy clips.
    """
    far = top > policy.reach - 1
    # λmax(MMᴴ) ≤ tr MMᴴ ≤ p·(1 + top)
    scale = torch.where(far, (0.5 * p * top + 0.5 * p).rsqrt_(), 1.0)
    flag = far | ((top < -0.5) if size is None or leap is None else (size > leap * leap + _FAR))
    return Rescue(scale.clamp_min(_LEAST_SCALE), (scale >= _LEAST_SCALE).to(scale.dtype), flag)


def half_factors(rho: Tensor, lands: Tensor) -> tuple[Tensor, Tensor]:
    """The factor of C and the multiple of I that make Q for λ = ½: (I + Q)M = ρ(I − ½C′)M, C′ = ρ²(C + I) − I."""
    half = lands * rho * 0.5
    factor = -half * rho * rho
    return factor, factor + half + (rho - 1)


def land(c: Tensor, policy: Policy, leap: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Q with X⁺ = M + QM, and which matrices needed a rescue.

    Args:
        c: C = MMᴴ − I, measured, of shape (B, p, p); its memory is used.
        policy: how to land.
        leap: (s‖R‖_F)² for each matrix, where the policy clips.
    """
    size = None if leap is None else square_norm(c)
    rho, lands, flag = rescue(c.real.diagonal(dim1=-2, dim2=-1).amax(-1), c.shape[-1], policy, size, leap)
    if policy.half:
        return _affine_(c, *half_factors(rho, lands)), flag
    square = rho * rho
    return _affine_(policy.correction(_affine_(c, lands * square, lands * (square - 1))), rho, rho - 1), flag


def _affine_(a: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Factor·A + shift·I, in the memory of A; the parts of complex entries by themselves, which is faster."""
    real = as_real(a)
    real.mul_(factor.reshape(-1, *[1] * (real.ndim - 1)))
    a.real.diagonal(dim1=-2, dim2=-1).add_(shift[:, None])
    return a


class Length(NamedTuple):
    """The length of a leap, one value per matrix.

    Attributes:
        s: with ‖sR‖_F ≤ τ.
        clipped: where that is less than η; ``None`` if the policy never clips.
        square: (s‖R‖_F)²; ``None`` if the policy never clips.
    """

    s: Tensor
    clipped: Tensor | None
    square: Tensor | None


def clip(eta: Tensor, size: Tensor, p: int, policy: Policy) -> Length:
    """Shorten leaps as the policy says; the others are shortened, too, where they would leave any manifold.

    Args:
        eta: η.
        size: ‖R‖_F², or a bound of it.
        p: the number of rows.
        policy: how to land.
    """
    info = torch.finfo(size.dtype)
    most = LONGEST * p**0.5 if policy.clip is None else policy.clip
    # squares below may have been flushed to zero: then R is taken to be as large as it could be
    cap = most * size.clamp_min(info.tiny / info.eps).rsqrt()
    s = torch.clamp(eta, -cap, cap)  # somebody may set a negative learning rate
    if policy.clip is None:
        return Length(s, None, None)
    return Length(s, s != eta, s * s * size)


def newton_schulz(c: Tensor, steps: int) -> Tensor:
    """Q = K − I after k Newton–Schulz steps: K ← K(I − ½C), C ← −¼(3C² − C³).

    All are polynomials of one C, so they commute and M is touched once.
    """
    q = -0.5 * c
    for _ in range(steps - 1):
        square = c @ c
        c = -0.25 * (3 * square - square @ c)
        q = q - 0.5 * (c + q @ c)
    return q


def by_root(c: Tensor) -> Tensor:
    """Q = −λC with the paper's λ."""
    return -polynomial.root(c)[..., None, None] * c


def by_argmin(c: Tensor) -> Tensor:
    """Q = −λC with the λ of least distance."""
    return -polynomial.argmin(c)[..., None, None] * c


POLICIES = ("safe", "strict", "half", "root", "argmin", "newton-schulz")

_UNCLIPPED = 100.0
"""Where the others have left the manifold for good: no sooner, so that they are what was published."""


def policy(name: str, steps: int = 2) -> Policy:
    """The policy of that name; ``steps`` is the k of ``newton-schulz``.

    Example:
        >>> policy("safe").clip
        1.0
    """
    if name == "safe":
        return Policy(1.0, partial(newton_schulz, steps=1), half=True)
    if name == "strict":
        return Policy(0.5, partial(newton_schulz, steps=3))
    if name == "half":
        return Policy(None, partial(newton_schulz, steps=1), half=True, reach=_UNCLIPPED)
    if name == "root":
        return Policy(None, by_root, reach=_UNCLIPPED)
    if name == "argmin":
        return Policy(None, by_argmin, reach=_UNCLIPPED)
    if name == "newton-schulz":
        return Policy(None, partial(newton_schulz, steps=steps), reach=_UNCLIPPED)
    raise ValueError(f"Invalid landing: {name!r}; choose one of {', '.join(POLICIES)}")
