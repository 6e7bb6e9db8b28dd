"""What the bases for deterministic problems share: the last change of the point and of its gradient.

They work with the tangent part T of the gradient and may give any matrix D for the direction: POGO's leap along
:func:`leap_along` is the part of D that is tangent where X is now. So vectors of earlier points need no transport.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel import Direction, inner, norm

# The first leap, ‖ηR‖_F = √p/10, has nothing to go by: a tenth of a radian for each row.
_FIRST = 0.1


class Secant(NamedTuple):
    """The last displacement S and the change Y of the gradient, for each matrix; all zero where they tell nothing.

    Attributes:
        s: S/‖S‖.
        y: Y‖S‖/⟨S,Y⟩, so that ⟨s,y⟩ = 1.
        length: ⟨S,S⟩/⟨S,Y⟩, the inverse of the curvature along S; positive, or zero.
    """

    s: Tensor
    y: Tensor
    length: Tensor


def secant(s: Tensor, y: Tensor, known: Tensor) -> Secant:
    """See :class:`Secant`. A pair of curvature that is not positive, or rounding error, tells nothing.

    Args:
        s: S, the change of the point.
        y: Y, the change of the gradient.
        known: which matrices have been stepped before, so that there is an S.
    """
    (s, size), (y, change) = unit(s), unit(y)
    cosine = inner(s, y)
    length = size / (change * cosine)
    usable = known & (cosine > torch.finfo(cosine.dtype).eps ** 0.5) & torch.isfinite(length) & (length > 0)
    keep = usable[..., None, None]
    return Secant(
        torch.where(keep, s, 0), torch.where(keep, y / cosine[..., None, None], 0), torch.where(usable, length, 0)
    )


def unit(a: Tensor) -> tuple[Tensor, Tensor]:
    """A/‖A‖ and ‖A‖ of each matrix; zero stays zero."""
    size = norm(a)
    return a / size.clamp_min(torch.finfo(size.dtype).tiny)[..., None, None], size


def leap_along(x: Tensor, d: Tensor, scale: Tensor) -> Direction:
    """The direction G of which POGO's relative gradient is the tangent part of scale·D.

    For X on the manifold and G = 2D − (DXᴴ)X: X Skew(XᴴG) = D − Sym(DXᴴ)X.
    """
    largest = torch.finfo(scale.dtype).max ** 0.5
    return Direction(torch.baddbmm(d, d @ x.mH, x, beta=2, alpha=-1), scale.clamp(-largest, largest))


def step_length(quotient: Tensor, d: Tensor, last: Tensor, t: Tensor) -> Tensor:
    """η for each matrix: the quotient where it is finite and positive, else the last η.

    Args:
        quotient: of the last two points.
        d: the direction of descent, which gives the scale of the first step.
        last: the last η; zero where the direction has been zero so far.
        t: the number of this step, from 1.
    """
    size = norm(d)
    first = _FIRST * d.shape[-2] ** 0.5 / size.clamp_min(torch.finfo(quotient.dtype).tiny)
    # a stationary point has no scale: stay there until there is a direction
    first = torch.where(size > 0, first, 0.0)
    usable = torch.isfinite(quotient) & (quotient > 0)
    return torch.where((t == 1) | (last == 0), first, torch.where(usable, quotient, last))
