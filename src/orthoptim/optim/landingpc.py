"""LandingPC: Landing with a normalised direction and no safe step."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import Base, Direction, State, VAdam
from orthoptim.engine.step import Update
from orthoptim.optim.landing import field_columns, landing_field, outside
from orthoptim.optim.orthoptimizer import ColumnsUpdate, Orthoptimizer, Params
from orthoptim.validation import check_bool, check_positive
from orthoptim.views import Side, ViewLike


class LandingPC(Orthoptimizer):
    r"""The variant of Landing used for probabilistic circuits.

    .. math::
        X ← X - η(R + λ(XX^H - I)X),\qquad \text{then } X ← \operatorname{polar}(X) \text{ where } ‖XX^H - I‖_F > τ

    This is a reconstruction from a description by its authors, not a port of their code: the field of :class:`Landing`
    with VAdam's direction, a fixed η, and a projection as the only safeguard. Feasible in the limit, if η is small. A
    matrix that was written far from the manifold is projected by its next step and counted as rescued, unless it has no
    full rank: then it stays as it is and is counted as skipped. With ``tau=None`` nothing brings it back. A leap so
    long that X would be lost in its rounding is shortened before it is projected.

    Args:
        params: parameters, named parameters or param groups; every option below may also be set per group.
        lr: η.
        base: turns the gradient into the direction.
        lam: λ, the strength of the pull.
        tau: τ, the distance beyond which a matrix is projected; None: never.
        coupled: whether the pull is multiplied by η (as above); else the step is X − ηR − λ(XXᴴ−I)X.
        view: see :class:`POGO`.
        side: see :class:`POGO`.
        maximize: ascend instead.
        compile: see :class:`POGO`.

    Example:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.eye(2, 3))
        >>> opt = LandingPC([x], lr=0.1, lam=0.1, coupled=False)
        >>> x.grad = torch.ones(2, 3)
        >>> opt.step()
    """

    algorithm = "landingpc"
    decomposes = True

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        base: Base = VAdam(),  # noqa: B008  (never changed)
        *,
        lam: float = 1.0,
        tau: float | None = 0.5,
        coupled: bool = True,
        view: ViewLike = "matrix",
        side: Side = "auto",
        maximize: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            base,
            view=view,
            side=side,
            maximize=maximize,
            compile=compile,
            lam=lam,
            tau=tau,
            coupled=coupled,
        )

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> Update:
        """See :meth:`Orthoptimizer.update`."""
        g, lam = direction.whole(), group["lam"]
        field, distance = landing_field(x, g if group["coupled"] else lr * g, lam)
        leap = lr * field if group["coupled"] else field
        if group["tau"] is None:
            return Update(x - leap)
        x = x - _shortened(leap)
        far = ~(stiefel.distance(x) <= group["tau"])  # also where XXᴴ overflows
        return Update(stiefel.project_where(far, x), clipped=far, rescued=outside(distance, group["tau"]))

    @classmethod
    def steps_columns(cls, group: Mapping[str, Any]) -> bool:
        """See :meth:`Orthoptimizer.steps_columns`."""
        return True

    @staticmethod
    def update_columns(x: Tensor, g: Tensor, lr: Tensor, group: Mapping[str, Any]) -> ColumnsUpdate:
        """See :meth:`Orthoptimizer.update_columns`."""
        (a, b), scale = yield [x @ x.mH, x @ g.mH]
        one = torch.ones(x.shape[0], dtype=lr.dtype, device=x.device)
        factor = one if scale is None else scale
        lam, factor = group["lam"] * one, factor if group["coupled"] else lr * factor
        field, distance = field_columns(x, g, a, b, lam, factor)
        x = x - (lr * field if group["coupled"] else field)
        (gram,), _ = yield [x @ x.mH]
        c = stiefel.subtract_identity(gram.clone())
        if group["tau"] is None:
            return Update(x), stiefel.witness(c, c)
        far = ~(stiefel.norm(c) <= group["tau"])
        x, witness = stiefel.project_columns_where(far, x, gram)
        return Update(x, clipped=far, rescued=outside(distance, group["tau"])), witness

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        check_positive("lam", group["lam"])
        check_bool("coupled", group["coupled"])
        if group["tau"] is not None:  # which never projects
            check_positive("tau", group["tau"])


def _shortened(leap: Tensor) -> Tensor:
    """Leaps of at most 1/(4√u) in the Frobenius norm.

    Where a leap has no full rank, as that of real square matrices of odd size, the least singular value of X − leap is
    that of X. Beyond this length it is lost in the rounding of X − leap, and there is no nearest point.
    """
    longest: float = 0.25 / torch.finfo(leap.dtype).eps ** 0.5
    return leap * (longest / stiefel.norm(leap)).clamp_max(1)[:, None, None]
