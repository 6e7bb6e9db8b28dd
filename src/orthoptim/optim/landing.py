"""Landing: an infeasible method whose field pulls towards the manifold."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import SGD, Base, Direction, State
from orthoptim.optim.block_step import Update
from orthoptim.optim.orthoptimizer import ColumnsUpdate, Orthoptimizer, Params
from orthoptim.validation import check_positive
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
        field, d = landing_field(x, direction.whole(), group["lam"])
        size = stiefel.norm(field).clamp_min(torch.finfo(d.dtype).tiny)
        eta = safe_length(d, size, lr, group["lam"], group["eps"])
        return Update(x - eta[..., None, None] * field, clipped=eta < lr)

    @classmethod
    def steps_columns(cls, group: Mapping[str, Any]) -> bool:
        """See :meth:`Orthoptimizer.steps_columns`."""
        return True

    @staticmethod
    def update_columns(x: Tensor, g: Tensor, lr: Tensor, group: Mapping[str, Any]) -> ColumnsUpdate:
        """See :meth:`Orthoptimizer.update_columns`."""
        (a, b, entry), scale = yield [x @ x.mH, x @ g.mH, stiefel.largest(g)]
        # Λ over a bound of its size: its square does not overflow
        unit = (entry if scale is None else entry * scale).clamp_min(1)
        field, d = field_columns(x, g, a, b, group["lam"] / unit, 1 / unit if scale is None else scale / unit)
        (square,), _ = yield [stiefel.square_norm(field)]
        size = (square.sqrt() * unit).clamp_min(torch.finfo(d.dtype).tiny)
        eta = safe_length(d, size, lr, group["lam"], group["eps"])
        return Update(x - (eta * unit)[:, None, None] * field, clipped=eta < lr), d + eta * size

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        check_positive("lam", group["lam"])
        check_positive("eps", group["eps"])
        if group["eps"] >= 1:
            raise ValueError(f"Invalid eps value: {group['eps']}; the safe region has a radius between 0 and 1")


def safe_length(d: Tensor, size: Tensor, lr: Tensor, lam: float, eps: float) -> Tensor:
    """η′ for each matrix, from its distance d and the size g of the field."""
    # divided by g once: g² overflows long before g does
    pull = lam * d * (1 - d) / size
    safe = (pull + torch.sqrt(pull**2 + (eps - d).clamp_min(0))) / size
    return torch.minimum(lr, safe).clamp_max(1 / (2 * lam))


def landing_field(x: Tensor, g: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """The field Λ = R + λCX = ½(XXᴴ)G + (λC − ½XGᴴ)X, in four products, and the distance ‖C‖_F, C = XXᴴ − I."""
    a = x @ x.mH
    tangent = a @ g
    c = stiefel.subtract_identity(a)
    pull = torch.add(lam * c, x @ g.mH, alpha=-0.5)
    return torch.baddbmm(tangent, pull, x, beta=0.5), stiefel.norm(c)


def field_columns(x: Tensor, g: Tensor, a: Tensor, b: Tensor, lam: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """``landing_field`` of some columns, given A = XXᴴ and B = XGᴴ; with λ and a factor of G for each matrix."""
    lam, factor = lam[:, None, None], factor[:, None, None]
    tangent = (a * factor) @ g
    c = stiefel.subtract_identity(a)
    return torch.baddbmm(tangent, lam * c - 0.5 * factor * b, x, beta=0.5), stiefel.norm(c)
