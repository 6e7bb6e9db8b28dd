"""Limited-memory BFGS: a direction from the last displacements, for deterministic problems."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.base.base import Base, Kind, State
from orthoptim.base.secant import leap_along, secant, step_length, unit
from orthoptim.stiefel import Direction, inner, tangent
from orthoptim.validation import check_positive_integer


class LBFGS(Base):
    r"""Limited-memory BFGS on the Stiefel manifold.

    With T the tangent part of the gradient and Sᵢ, Yᵢ the last changes of the point and of T, for each matrix,

    .. math::
        D = H T,\qquad H ← \Bigl(I - \frac{S_i Y_i^*}{⟨S_i,Y_i⟩}\Bigr) H \Bigl(I - \frac{Y_i S_i^*}{⟨S_i,Y_i⟩}\Bigr)
        + \frac{S_i S_i^*}{⟨S_i,Y_i⟩}, \qquad H_0 = \frac{⟨S,Y⟩}{⟨Y,Y⟩} I

    by the usual two loops. POGO leaps along P D, the part of D that is tangent at X: P H P is positive definite on the
    tangent space for pairs of any earlier points, so that they are kept as they are, and landing takes the place of a
    retraction. Pairs whose ⟨S,Y⟩ is not positive are left out.

    The step is the unit step of BFGS; a :class:`orthoptim.LineSearch` sees to descent far from a minimum. For
    deterministic gradients, and for POGO, which lands with ``landing="strict"`` unless told otherwise.

    Args:
        history_size: the number of pairs; each takes twice the memory of the parameter.

    Example:
        >>> import orthoptim as oo
        >>> opt = oo.POGO([torch.nn.Parameter(torch.eye(3))], base=oo.LBFGS(history_size=5))
        >>> opt.param_groups[0]["lr"], opt.param_groups[0]["landing"]
        (1.0, 'strict')
    """

    name = "lbfgs"
    whole_matrix = True
    default_lr = 1.0
    default_landing = "strict"
    default_curvature = 0.9

    def __init__(self, history_size: int = 10) -> None:
        check_positive_integer("history_size", history_size)
        super().__init__(history_size=history_size)

    @staticmethod
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """The last point, the tangent part of its gradient, the factor of H₀, and the pairs, the last one first."""
        kinds: dict[str, Kind] = {"last_point": "entries", "last_gradient": "entries", "step_length": "matrices"}
        for i in range(hyperparameters["history_size"]):
            kinds |= {f"displacement_{i}": "entries", f"gradient_change_{i}": "entries", f"length_{i}": "matrices"}
        return kinds

    @classmethod
    def direction(
        cls, x: Tensor, grad: Tensor, state: State, t: Tensor, **hyperparameters: Any
    ) -> tuple[Direction, State]:
        """See :meth:`Base.direction`."""
        gradient = tangent(x, grad)
        newest = secant(x - state["last_point"], gradient - state["last_gradient"], t > 1)
        names = ("displacement_{}", "gradient_change_{}", "length_{}")
        older = [[state[name.format(i)] for name in names] for i in range(hyperparameters["history_size"] - 1)]
        pairs = [[*newest], *older]
        first = step_length(newest.length / inner(newest.y, newest.y), gradient, state["step_length"], t)
        g, size = unit(gradient)
        d = _two_loops(g, pairs, first)
        new = {name.format(i): value for i, pair in enumerate(pairs) for name, value in zip(names, pair, strict=True)}
        new |= {"last_point": x, "last_gradient": gradient, "step_length": first}
        return leap_along(x, d, first * size), new


def _two_loops(g: Tensor, pairs: list[list[Tensor]], first: Tensor) -> Tensor:
    """HG in units of H₀; G itself where rounding leaves no descent.

    Args:
        g: G, of unit norm.
        pairs: those of :class:`orthoptim.base.secant.Secant`, the newest first.
        first: the factor of H₀.
    """
    d, weights = g, []
    for s, y, _ in pairs:
        weights.append(inner(s, d))
        d = d - weights[-1][..., None, None] * y
    for (s, y, length), weight in zip(reversed(pairs), reversed(weights), strict=True):
        d = d + (length / first * weight - inner(y, d))[..., None, None] * s
    descends = inner(d, g) > torch.finfo(first.dtype).eps ** 0.5 * inner(d, d).sqrt()
    return torch.where(descends[..., None, None], d, g)
