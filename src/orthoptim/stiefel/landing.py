"""Landing policies: how a leap M is brought back to the manifold.

A policy is decisions made from p×p quantities alone:

- ``clip``: the longest leap it allows, in the Schatten-4 norm ‖sR‖₄ = s√‖RRᴴ‖_F (``None``: any);
- ``correction``: Q(C), with C = MMᴴ − I, such that X⁺ = M + QM. Adding QM to M is more accurate than multiplying M by
  I + Q (3.4e-6 against 5.5e-6 at 256×256 in float32);
- ``slack``: the error of C that the rounding of a less accurate form may cause;
- ``half``: whether Q is just −½C.

| name | clip | λ | distance ‖XXᴴ−I‖₂ |
|---|---|---|---|
| ``safe`` | 1 | ½ | ≤ ½ for any gradients, forever; ≤ ¾ξ⁴ while ξ = η‖G‖_F ≤ 1 |
| ``strict`` | ½ | ½, three times | ≤ 1.5e-6 and rounding for any gradients, forever |
| ``half`` | – | ½ | ≤ ¾ξ⁴ while ξ ≤ √2; diverges past 2 |
| ``root`` | – | the paper's root of P | the paper's |
| ``argmin`` | – | minimises P | least of all single landings |
| ``newton-schulz`` | – | ½, k times | order ξ^(2^(k+1)) |

Why ``safe`` never diverges: for spec(XXᴴ) ⊂ [1−δ, 1] a leap clipped to τ ≤ 1 gives spec(MMᴴ) ⊂ [1−δ, 1+τ²], which one
landing maps into [1−δ′, 1] with δ′ = max(δ²(3+δ)/4, τ⁴(3−τ²)/4): δ ≤ ½ is invariant.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel import polynomial


class Policy(NamedTuple):
    """One way of landing."""

    clip: float | None
    correction: Callable[[Tensor], Tensor]
    slack: float = 1e-2
    half: bool = False


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
    """Q = −λC with the paper's root of the landing polynomial."""
    return -polynomial.root(c)[..., None, None] * c


def by_argmin(c: Tensor) -> Tensor:
    """Q = −λC with the λ of least distance."""
    return -polynomial.argmin(c)[..., None, None] * c


POLICIES = ("safe", "strict", "half", "root", "argmin", "newton-schulz")


def policy(name: str, steps: int = 2) -> Policy:
    """The policy of that name; ``steps`` is the k of ``newton-schulz``.

    Example:
        >>> policy("safe").clip
        1.0
    """
    if name == "safe":
        return Policy(1.0, partial(newton_schulz, steps=1), half=True)
    if name == "strict":
        return Policy(0.5, partial(newton_schulz, steps=3), slack=1e-6)
    if name == "half":
        return Policy(None, partial(newton_schulz, steps=1), half=True)
    if name == "root":
        return Policy(None, by_root)
    if name == "argmin":
        return Policy(None, by_argmin)
    if name == "newton-schulz":
        return Policy(None, partial(newton_schulz, steps=steps))
    raise ValueError(f"Invalid landing: {name!r}; choose one of {', '.join(POLICIES)}")


def clip_length(size: Tensor, eta: Tensor, policy: Policy, slope: Tensor | None = None) -> Tensor:
    """The s ≤ η, one value per matrix, for which ‖MMᴴ − XXᴴ‖_F ≤ τ²: s = min(η, τ/√‖RRᴴ‖_F) where R is tangent.

    Args:
        size: ‖RRᴴ‖_F.
        eta: η.
        policy: one that clips.
        slope: ‖RXᴴ + XRᴴ‖_F, where R is not tangent to its own precision. Then s²·size + s·slope ≤ τ², and the second
            term takes at most a tenth of it.
    """
    assert policy.clip is not None
    info = torch.finfo(size.dtype)
    # Below this the entries of RRᴴ may have been flushed to zero; what is then lost of s²RRᴴ stays under the roundoff.
    floor = info.tiny / info.eps
    size = size.clamp_min(floor)
    if slope is None:
        return torch.minimum(eta, size.rsqrt().mul_(policy.clip))
    limit = policy.clip**2
    slope = slope.clamp_min(floor)
    root = 2 * limit / (slope + torch.sqrt(slope**2 + 4 * limit * size))
    return torch.minimum(eta, torch.minimum(root, limit / (10 * slope)))
