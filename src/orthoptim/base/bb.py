"""Barzilai–Borwein: a step length from the last two points, for deterministic problems."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.base.base import Base, Kind, State
from orthoptim.stiefel import Direction, inner, max_entry, norm, relative_gradient

# The first leap, ‖ηR‖_F = √p/10, has nothing to go by: a tenth of a radian for each row.
_FIRST = 0.1


class BB(Base):
    r"""The gradient, scaled by a Barzilai–Borwein step length; there is no learning rate to tune.

    With S and Y the last changes of the point and of its relative gradient R, for each matrix,

    .. math::
        G = η_t ∇f(X_t),\qquad η_t = \left|\frac{⟨S,S⟩}{⟨S,Y⟩}\right| \text{ for even } t,\quad
        \left|\frac{⟨S,Y⟩}{⟨Y,Y⟩}\right| \text{ for odd } t.

    A quotient that is not finite and positive leaves η as it was; where R has been zero so far, X stays. Being a scalar
    factor, it keeps POGO equivariant and all guarantees of landing. Not for stochastic gradients: Y would be mostly
    noise.

    Long quotients leap far: POGO lands BB's leaps with ``landing="strict"`` unless told otherwise, which costs no
    iterations, and refuses the landings that do not clip.

    Example:
        >>> import orthoptim as oo
        >>> opt = oo.POGO([torch.nn.Parameter(torch.eye(3))], base=oo.BB())
        >>> opt.param_groups[0]["lr"], opt.param_groups[0]["landing"]
        (1.0, 'strict')
    """

    name = "bb"
    whole_matrix = True
    default_lr = 1.0
    default_landing = "strict"

    def __init__(self) -> None:
        super().__init__()

    @staticmethod
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """The last point, its relative gradient, and the last step length."""
        return {"last_point": "entries", "last_relative_gradient": "entries", "step_length": "matrices"}

    @classmethod
    def direction(
        cls, x: Tensor, grad: Tensor, state: State, t: Tensor, **hyperparameters: Any
    ) -> tuple[Direction, State]:
        """See :meth:`Base.direction`."""
        r = relative_gradient(x, grad)
        long, short = quotients(x - state["last_point"], r - state["last_relative_gradient"])
        eta = step_length(torch.where(t % 2 == 0, long, short), r, state["step_length"], t)
        # an almost normal gradient is far larger than R: ηG must not overflow where ηR is of order one
        info = torch.finfo(eta.dtype)
        eta = torch.minimum(eta, info.max**0.5 / max_entry(grad))
        # far from the manifold R may overflow where G does not: no direction, so that R does not enter the state
        eta = torch.where(torch.isfinite(max_entry(r)), eta, torch.nan)
        return Direction(grad, eta), {"last_point": x, "last_relative_gradient": r, "step_length": eta}


def quotients(s: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The long |⟨S,S⟩/⟨S,Y⟩| and the short |⟨S,Y⟩/⟨Y,Y⟩| of each matrix."""
    sy = inner(s, y)
    return (inner(s, s) / sy).abs(), (sy / inner(y, y)).abs()


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
