"""Barzilai–Borwein: a step length from the last two points, for deterministic problems."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.base.base import Base, Kind, State
from orthoptim.base.secant import step_length
from orthoptim.stiefel import Direction, inner, max_entry, relative_gradient


class BB(Base):
    r"""The gradient, scaled by a Barzilai–Borwein step length; there is no learning rate to tune.

    With S and Y the last changes of the point and of its relative gradient R, for each matrix,

    .. math::
        G = η_t ∇f(X_t),\qquad η_t = \left|\frac{⟨S,S⟩}{⟨S,Y⟩}\right| \text{ for even } t,\quad
        \left|\frac{⟨S,Y⟩}{⟨Y,Y⟩}\right| \text{ for odd } t.

    If a quotient is not finite and positive, η keeps its value; as long as R has been zero, X stays. η is a scalar
    factor, so POGO stays equivariant and keeps all guarantees of its landing. Not for stochastic gradients: Y would be
    mostly noise.

    Large quotients make long leaps: POGO lands them by default with ``landing="strict"``, which costs no iterations,
    and refuses landings that do not clip.

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
