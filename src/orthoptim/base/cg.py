"""Conjugate gradients: a direction from the last displacement, for deterministic problems."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from orthoptim.base.base import Base, Kind, State
from orthoptim.base.secant import leap_along, secant, step_length, unit
from orthoptim.stiefel import Direction, inner, tangent


class CG(Base):
    r"""Conjugate gradients on the Stiefel manifold, by the formula of Hager and Zhang (CG_DESCENT).

    With T the tangent part of the gradient, S and Y the last changes of the point and of T, for each matrix,

    .. math::
        D = T - \max\Bigl(0,\; \frac{⟨Y,T⟩}{⟨S,Y⟩} - 2\,\frac{⟨Y,Y⟩⟨S,T⟩}{⟨S,Y⟩^2}\Bigr) S,\qquad
        η = \frac{⟨T,D⟩}{⟨D,D⟩}\,\frac{⟨S,S⟩}{⟨S,Y⟩}

    POGO leaps along the part of D that is tangent at X: S is transported by projection, and landing takes the place of
    a retraction. ⟨D,T⟩ ≥ ⅞‖T‖² whatever S and Y are. η is the step to the minimum along D, if the curvature along D is
    that along S; a :class:`orthoptim.LineSearch` finds a better one. Where ⟨S,Y⟩ is not positive, D = T and η stays.

    For deterministic gradients, and for POGO, which lands with ``landing="strict"`` unless told otherwise.

    Example:
        >>> import torch
        >>> import orthoptim as oo
        >>> opt = oo.POGO([torch.nn.Parameter(torch.eye(3))], base=oo.CG())
        >>> opt.param_groups[0]["lr"], opt.param_groups[0]["landing"]
        (1.0, 'strict')
    """

    name = "cg"
    whole_matrix = True
    default_lr = 1.0
    default_landing = "strict"
    default_curvature = 0.1

    def __init__(self) -> None:
        super().__init__()

    @staticmethod
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """The last point, the tangent part of its gradient, and the last step length."""
        return {"last_point": "entries", "last_gradient": "entries", "step_length": "matrices"}

    @classmethod
    def direction(
        cls, x: Tensor, grad: Tensor, state: State, t: Tensor, **hyperparameters: Any
    ) -> tuple[Direction, State]:
        """See :meth:`Base.direction`."""
        gradient = tangent(x, grad)
        s, y, length = secant(x - state["last_point"], gradient - state["last_gradient"], t > 1)
        g, size = unit(gradient)
        weight = (inner(y, g) - 2 * inner(y, y) * inner(s, g)).clamp_min(0)
        d = g - weight[..., None, None] * s
        along = inner(g, d) / inner(d, d)
        eta = step_length(length * along, gradient, state["step_length"], t)
        new = {"last_point": x, "last_gradient": gradient, "step_length": eta}
        return leap_along(x, d, eta * size), new
