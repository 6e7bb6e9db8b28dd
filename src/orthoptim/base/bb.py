"""Barzilai–Borwein: a step length from the last two points, for deterministic problems."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.base.base import Base, Direction, Kind, State
from orthoptim.stiefel import inner, relative_gradient

# The first leap, ‖ηR‖_F = √p/10, has nothing to go by: a tenth of a radian for each row.
_FIRST = 0.1


class BB(Base):
    r"""The gradient, scaled by a Barzilai–Borwein step length; there is no learning rate to tune.

    With S and Y the last changes of the point and of its relative gradient R, for each matrix,

    .. math::
        G = η_t ∇f(X_t),\qquad η_t = \left|\frac{⟨S,S⟩}{⟨S,Y⟩}\right| \text{ for even } t,\quad
        \left|\frac{⟨S,Y⟩}{⟨Y,Y⟩}\right| \text{ for odd } t.

    A quotient that is not finite and positive leaves η as it was. Being a scalar factor, it keeps POGO equivariant and
    all guarantees of landing. Not for stochastic gradients: Y would be mostly noise.

    Example:
        >>> import orthoptim as oo
        >>> opt = oo.POGO([torch.nn.Parameter(torch.eye(3))], base=oo.BB())
        >>> opt.param_groups[0]["lr"]
        1.0
    """

    name = "bb"
    default_lr = 1.0

    def __init__(self) -> None:
        super().__init__()

    @staticmethod
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """The last point, its relative gradient, and the last step length."""
        return {"last_point": "entries", "last_relative_gradient": "entries", "step_length": "matrices"}

    @staticmethod
    def direction(
        x: Tensor, grad: Tensor, statistic: Tensor | None, state: State, t: Tensor, **hyperparameters: Any
    ) -> tuple[Direction, State]:
        """See :meth:`Base.direction`."""
        r = relative_gradient(x, grad)
        eta = step_length(x, r, state["last_point"], state["last_relative_gradient"], state["step_length"], t)
        return Direction(grad, eta), {"last_point": x, "last_relative_gradient": r, "step_length": eta}


def step_length(x: Tensor, r: Tensor, last_x: Tensor, last_r: Tensor, last_eta: Tensor, t: Tensor) -> Tensor:
    """η for each matrix, from two points and two directions of descent."""
    s, y = x - last_x, r - last_r
    sy = inner(s, y)
    quotient = torch.where(t % 2 == 0, inner(s, s) / sy, sy / inner(y, y)).abs()
    usable = torch.isfinite(quotient) & (quotient > 0)
    tiny = torch.finfo(quotient.dtype).tiny
    first = _FIRST * x.shape[-2] ** 0.5 / torch.linalg.matrix_norm(r).clamp_min(tiny)
    # a start at a stationary point has no scale: leave it there
    first = torch.where(torch.isfinite(first), first, 1.0)
    return torch.where(t == 1, first, torch.where(usable, quotient, last_eta))
