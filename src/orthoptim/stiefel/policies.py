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

*Mixed precision.* With ``mixed`` the leap runs at the precision that the user's switches allow, TF32 or bfloat16, and
C = MMᴴ − I is measured exactly, so that the landing takes back what the leap did. R is then not quite tangent:

- in ``direct-n`` S = Skew(XᴴG) is skew to the last bit, and so is what it is rounded to. XS with X rounded to X + E
  changes MMᴴ by s(ESXᴴ − XSEᴴ), about 4u of the length of the leap, u = 2⁻⁸;
- in ``direct-p`` ‖RXᴴ + XRᴴ‖ ≤ 8u‖G‖. The clip bounds s²(‖R‖² + w‖G‖²) by τ² with w = (53u)²: then s·8u‖G‖ ≤ 0.15τ,
  and the most that an eigenvalue moves beyond 1 + τ² is max(8uy − wy²) = 16u²/w < 0.006;
- ``gram`` puts C together instead of measuring it, and is not used.

So spec(C) ⊂ [−δ − 0.17, τ² + 4u]. The landing product QM is reduced for λ = ½, whose residual it changes by about
u‖C‖, and exact, with the p×p products of Q, for the policies of higher order. A clip at τ² − 24u, or τ² − 8u for
``strict``, keeps the bounds: f maps [−0.67, 1 − 20u] into [½ + 12u, 1], and QM is off by less than 8u; and three
landings map [−0.17, ¼ − 4u] to 1.5e-6 from 1.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel import polynomial
from orthoptim.stiefel.batches import Numbers, as_real, can_look, pointwise, square_norms

_FAR = 0.36
"""‖C‖_F² beyond this and that of the leap is not explained by steps from the manifold: 1/3 and rounding."""

_LEAST_SCALE = 1e-2
"""How much a rescue scales down in one step: ρM is computed as M + (ρ − 1)M, which loses u/ρ."""

LONGEST = 10.0
"""‖sR‖_F/√p beyond which a leap is cut off by any policy: from a matrix that is far away, leaps are far too long.

The form ``tiny`` cuts off only where the policy clips: it saves the passes over memory.
"""


REDUCED = 2.0**-8
"""The unit roundoff of reduced products that ``mixed`` reckons with: that of bfloat16; TF32's is an eighth of it."""


class Policy(NamedTuple):
    """One way of landing."""

    clip: float | None
    correction: Callable[[Tensor], Tensor]
    half: bool = False
    reach: float = 2.1  # 1 + τ² and a margin for rounding
    mixed: bool = False  # whether products that the landing measures the effect of may be reduced


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
    return _rescue(top, *(() if size is None or leap is None else (size, leap)), p=p, reach=policy.reach)


@pointwise
def _rescue(top: Tensor, *sizes: Tensor, p: int, reach: float) -> Rescue:
    """See :func:`rescue`; ``sizes`` are none, or ‖C‖_F² and (s‖R‖_F)², or ‖C‖_F², s and ‖R‖_F²."""
    far = top > reach - 1
    # λmax(MMᴴ) ≤ tr MMᴴ ≤ p·(1 + top)
    scale = torch.where(far, (0.5 * p * top + 0.5 * p).rsqrt_(), 1.0)
    if sizes:
        leap = sizes[1] if len(sizes) == 2 else sizes[1] * sizes[1] * sizes[2]
        flag = far | (sizes[0] > leap * leap + _FAR)
    else:
        flag = far | (top < -0.5)
    return Rescue(scale.clamp_min(_LEAST_SCALE), (scale >= _LEAST_SCALE).to(scale.dtype), flag)


def half_factors(rho: Tensor, lands: Tensor) -> tuple[Tensor, Tensor]:
    """The factor of C and the multiple of I that make −2Q for λ = ½: (I + Q)M = ρ(I − ½C′)M, C′ = ρ²(C + I) − I.

    Of −2Q, not Q: exactly 1 and 0 in every ordinary step, so that C is as it was where nobody computes them. Half of C
    is C with other bits where it is subnormal.
    """
    lands = lands * rho
    factor = lands * rho * rho
    return factor, factor - lands - 2 * (rho - 1)


class Length(NamedTuple):
    """The length of a leap, one value per matrix.

    Attributes:
        s: with ‖sR‖_F ≤ τ.
        clipped: where that is less than η; ``None`` if the policy never clips.
        size: ‖R‖_F².
    """

    s: Numbers
    clipped: Any
    size: Numbers


def leap_square(length: Length) -> Numbers | None:
    """(s‖R‖_F)²; ``None`` if the policy never clips. No property: torch 2.9 traces none of a named tuple."""
    return None if length.clipped is None else length.s * length.s * length.size


def clip(eta: Numbers, size: Numbers, p: int, policy: Policy, dtype: torch.dtype = torch.float64) -> Length:
    """Shorten leaps as the policy says; the others are shortened, too, where they would leave any manifold.

    Args:
        eta: η.
        size: ‖R‖_F², or a bound of it.
        p: the number of rows.
        policy: how to land.
        dtype: that of the matrices, where numbers are Python's.
    """
    dtype = size.dtype if isinstance(size, Tensor) else dtype
    if policy.clip is None:
        return Length(_shortened(eta, size, most=LONGEST * p**0.5, dtype=dtype), None, size)
    return Length(*_clipped(eta, size, most=policy.clip, dtype=dtype), size)


def _shorten(eta: Numbers, size: Numbers, *, most: float, dtype: torch.dtype) -> Numbers:
    """The s nearest to η with s²·size ≤ most²."""
    info = torch.finfo(dtype)
    least = (
        info.tiny / info.eps
    )  # squares below may have been flushed to zero: R is taken to be as large as it could be
    if isinstance(size, Tensor):
        cap = most * size.clamp_min(least).rsqrt()
        return torch.clamp(eta, -cap, cap)  # somebody may set a negative learning rate
    limit = most / math.sqrt(max(size, least))
    return eta if abs(eta) <= limit else math.copysign(limit, eta)


@pointwise
def _clipped(eta: Numbers, size: Numbers, *, most: float, dtype: torch.dtype) -> tuple[Numbers, Any]:
    """The same, and where it is not η."""
    s = _shorten(eta, size, most=most, dtype=dtype)
    return s, s != eta


_shortened = pointwise(_shorten)


class Correction(NamedTuple):
    """How to land: X⁺ = M + weight·QM.

    Attributes:
        q: Q up to its weight, (B, p, p).
        weight: a number.
        rescued: which matrices needed a rescue; ``None``: none, and all are finite.
        top: the largest entry on the diagonal of C: finite only if M is; ``None`` where that is known.
    """

    q: Tensor
    weight: float
    rescued: Tensor | None
    top: Tensor | None

    def matrix(self) -> Tensor:
        """Q with its weight."""
        return self.q if self.weight == 1 else self.q * self.weight


def land(c: Tensor, policy: Policy, length: Length | None = None) -> Correction:
    """How to land M, of which C = MMᴴ − I was measured.

    Args:
        c: C, of shape (B, p, p); its memory is used.
        policy: how to land.
        length: that of the leap.
    """
    size = None
    if length is not None and length.clipped is not None:
        size = square_norms(c, on_host=isinstance(length.s, float))
    if size is not None and are_near(size):
        return Correction(c, -0.5, None, None) if policy.half else Correction(policy.correction(c), 1, None, None)
    top = c.real.diagonal(dim1=-2, dim2=-1).amax(-1)
    if policy.half and size is None and are_between(top, policy):
        return Correction(c, -0.5, None, top)
    sizes = () if size is None or length is None else (size, length.s, length.size)
    if policy.half:
        factor, shift, flag = _half_landing(top, *sizes, p=c.shape[-1], reach=policy.reach)
        return Correction(_affine_(c, factor, shift), -0.5, flag, top)
    factor, shift, rho, less, flag = _scaled_landing(top, *sizes, p=c.shape[-1], reach=policy.reach)
    c = _affine_(c, factor, shift)
    return Correction(_affine_(policy.correction(c), rho, less), 1, flag, top)


@pointwise
def _half_landing(top: Tensor, *sizes: Tensor, p: int, reach: float) -> tuple[Tensor, Tensor, Tensor]:
    """The factor of C and the multiple of I that make −2Q for λ = ½, and which matrices need a rescue."""
    rho, lands, flag = _rescue(top, *sizes, p=p, reach=reach)
    return *half_factors(rho, lands), flag


@pointwise
def _scaled_landing(top: Tensor, *sizes: Tensor, p: int, reach: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The factor of C and the multiple of I that make C′; ρ, ρ − 1, and which matrices need a rescue."""
    rho, lands, flag = _rescue(top, *sizes, p=p, reach=reach)
    square = rho * rho
    return lands * square, lands * (square - 1), rho, rho - 1, flag


def are_near(size: Numbers) -> bool:
    """Whether it is known, by a look, that no matrix needs a rescue and all are finite.

    On a CPU, where to look at values waits for nobody, that spares ordinary steps all that a rescue computes.

    Args:
        size: ‖C‖_F² of each matrix; at most 0.36 it bounds the diagonal of C by 0.6.
    """
    if not isinstance(size, Tensor):
        return bool(size <= _FAR)
    return can_look(size) and size.numel() > 0 and size.max().item() <= _FAR


def are_between(top: Tensor, policy: Policy) -> bool:
    """The same, from the largest entry on the diagonal of C, where the policy does not clip."""
    if not can_look(top) or top.numel() == 0:
        return False
    low, high = torch.aminmax(top)
    return low.item() >= -0.5 and high.item() <= policy.reach - 1


def _affine_(a: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Factor·A + shift·I, in the memory of A; the parts of complex entries by themselves, which is faster."""
    real = as_real(a)
    real.mul_(factor.reshape(-1, *[1] * (real.ndim - 1)))
    a.real.diagonal(dim1=-2, dim2=-1).add_(shift[:, None])
    return a


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


_FIXED = {
    "safe": Policy(1.0, partial(newton_schulz, steps=1), half=True),
    "strict": Policy(0.5, partial(newton_schulz, steps=3)),
    "half": Policy(None, partial(newton_schulz, steps=1), half=True, reach=_UNCLIPPED),
    "root": Policy(None, by_root, reach=_UNCLIPPED),
    "argmin": Policy(None, by_argmin, reach=_UNCLIPPED),
}


def policy(name: str, steps: int = 2, mixed: bool = False) -> Policy:
    """The policy of that name; ``steps`` is the k of ``newton-schulz``, ``mixed`` see the module.

    Example:
        >>> policy("safe").clip
        1.0
    """
    chosen = _FIXED.get(name) or _policy(name, steps)
    if not mixed:
        return chosen
    slack = (24 if chosen.half else 8) * REDUCED
    clip = None if chosen.clip is None else (chosen.clip**2 - slack) ** 0.5
    return chosen._replace(clip=clip, mixed=True)


def _policy(name: str, steps: int) -> Policy:
    if name == "newton-schulz":
        return Policy(None, partial(newton_schulz, steps=steps), reach=_UNCLIPPED)
    raise ValueError(f"Invalid landing: {name!r}; choose one of {', '.join(POLICIES)}")
