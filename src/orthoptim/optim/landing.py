"""Landing: an infeasible method whose field pulls towards the manifold."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import SGD, Base, Direction, State
from orthoptim.optim.block_step import Update
from orthoptim.optim.orthoptimizer import Orthoptimizer, Params
from orthoptim.views import Side, View


class Landing(Orthoptimizer):
    r"""The landing algorithm, with its safe step size for each matrix.

    .. math::
        Λ = R + λ(XX^H - I)X,\qquad X ← X - η'Λ,\qquad
        η' = \min\Bigl\{η,\; \frac{a + \sqrt{a^2 + g^2 \max(ε - d, 0)}}{g^2},\; \frac{1}{2λ}\Bigr\}

    with R the relative gradient, d = ‖XXᴴ−I‖_F, g = ‖Λ‖_F and a = λd(1−d). Only matrix products; the distance never
    exceeds ε from a start inside, and vanishes in the limit.

    Args:
        params: parameters, named parameters or param groups; every option below may also be set per group.
        lr: η, the longest step size.
        base: turns the gradient into the direction; ``SGD(momentum=...)`` is the heavy ball.
        lam: λ, the strength of the pull.
        eps: ε, the radius of the safe region. (An ``eps`` of the base optimizer is called ``base_eps`` in the group.)
        view: see :class:`POGO`.
        side: see :class:`POGO`.
        maximize: ascend instead.
        compile: see :class:`POGO`.

    Example:
        >>> x = torch.nn.Parameter(torch.eye(2, 3))
        >>> opt = Landing([x], lr=0.1, base=SGD(momentum=0.1))
        >>> x.grad = torch.ones(2, 3)
        >>> opt.step()
    """

    algorithm = "landing"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        base: Base = SGD(),  # noqa: B008  (never changed)
        *,
        lam: float = 1.0,
        eps: float = 0.5,
        view: View = "matrix",
        side: Side = "auto",
        maximize: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__(params, lr, base, view=view, side=side, maximize=maximize, compile=compile, lam=lam, eps=eps)

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> Update:
        """See :meth:`Orthoptimizer.update`."""
        lam, eps = group["lam"], group["eps"]
        field, d = landing_field(x, direction.whole(), lam)
        size = stiefel.norm(field).clamp_min(torch.finfo(d.dtype).tiny)
        # divided by g once: g² overflows long before g does
        pull = lam * d * (1 - d) / size
        safe = (pull + torch.sqrt(pull**2 + (eps - d).clamp_min(0))) / size
        eta = torch.minimum(lr, safe).clamp_max(1 / (2 * lam))
        return Update(x - eta[..., None, None] * field, clipped=eta < lr)

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        if not group["lam"] > 0:
            raise ValueError(f"Invalid lam: {group['lam']}; the pull must be positive")
        if not 0 < group["eps"] < 1:
            raise ValueError(f"Invalid eps: {group['eps']}; the safe region has a radius between 0 and 1")


def landing_field(x: Tensor, g: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """The field Λ = R + λCX = ½(XXᴴ)G + (λC − ½XGᴴ)X, in four products, and the distance ‖C‖_F, C = XXᴴ − I."""
    a = x @ x.mH
    tangent = a @ g
    c = stiefel.subtract_identity(a)
    pull = torch.add(lam * c, x @ g.mH, alpha=-0.5)
    return torch.baddbmm(tangent, pull, x, beta=0.5), stiefel.norm(c)
