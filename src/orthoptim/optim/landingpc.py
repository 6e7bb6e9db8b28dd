"""LandingPC: Landing with a normalised direction and no safe step."""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import Base, Direction, State, VAdam
from orthoptim.optim.common_options import CommonOptions
from orthoptim.optim.landing import landing_field, outside
from orthoptim.optim.orthoptimizer import Orthoptimizer, Params
from orthoptim.stiefel import ColumnSums, Update
from orthoptim.validation import check_bool, check_positive


class LandingPC(Orthoptimizer):
    r"""The variant of Landing used for probabilistic circuits.

    .. math::
        X ← X - η(R + λ(XX^H - I)X),\qquad \text{then } X ← \operatorname{polar}(X) \text{ where } ‖XX^H - I‖_F > τ

    This is a reconstruction from a description by its authors, not a port of their code: the field of :class:`Landing`
    with VAdam's direction, a fixed η, and a projection as the only safeguard. Feasible in the limit, if η is small. A
    matrix that was written far from the manifold is projected by its next step and counted as rescued, unless it has no
    full rank: then it stays as it is and is counted as skipped. With ``tau=None`` nothing brings it back. A leap so
    long that X would be lost in its rounding is shortened before it is projected.

    Waits for the device, unless ``tau=None``: which matrices to project must be known, and torch asks whether their
    decomposition has succeeded.

    Args:
        {params}
        lr: η.
        base: turns the gradient into the direction.
        lam: λ, the strength of the pull.
        tau: τ, the distance beyond which a matrix is projected; None: never.
        coupled: whether the pull is multiplied by η (as above); else the step is X − ηR − λ(XXᴴ−I)X.
        {common}

    Example:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.eye(2, 3))
        >>> opt = LandingPC([x], lr=0.1, lam=0.1, coupled=False)
        >>> x.grad = torch.ones(2, 3)
        >>> opt.step()
    """

    algorithm = "landingpc"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        base: Base = VAdam(),  # noqa: B008  (never changed)
        *,
        lam: float = 1.0,
        tau: float | None = 0.5,
        coupled: bool = True,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, lr, base, lam=lam, tau=tau, coupled=coupled, **common)

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> ColumnSums[Update]:
        """See :meth:`Orthoptimizer.update`."""
        g, tau = direction.matrices, group["tau"]
        a, b, entry = yield [x @ x.mH, x @ g.mH, stiefel.largest(g)]
        # the leap over a bound of its size: its square does not overflow
        unit = (lr.abs() * (entry if direction.scale is None else entry * direction.scale)).clamp_min(1)
        lam = (group["lam"] * lr if group["coupled"] else group["lam"]) / unit
        c = stiefel.subtract_identity(a.clone())
        left, right = landing_field(a, b, c, lam[:, None, None], direction.times(lr / unit))
        leap = torch.baddbmm(left @ g, right, x)
        if tau is None:
            return Update(x - unit[:, None, None] * leap)
        (square,) = yield [stiefel.square_norm(leap)]
        x = x - _shortened(square.sqrt(), unit)[:, None, None] * leap
        (gram,) = yield [x @ x.mH]
        far = ~(stiefel.norm(stiefel.subtract_identity(gram)) <= tau)  # also where XXᴴ overflows
        new, probe = yield stiefel.project_where(far, x)
        size = gram.diagonal(dim1=-2, dim2=-1).real.sum(-1)
        probe = torch.where(far, probe, size)
        return Update(new, clipped=far, rescued=outside(stiefel.norm(c), tau), finiteness_probe=probe)

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        check_positive("lam", group["lam"])
        check_bool("coupled", group["coupled"])
        if group["capturable"] and group["tau"] is not None:
            raise ValueError("Invalid capturable: LandingPC waits for the device to project; choose tau=None or False")
        if group["tau"] is not None:  # which never projects
            check_positive("tau", group["tau"])


def _shortened(size: Tensor, unit: Tensor) -> Tensor:
    """What to multiply leaps by so that they have their length times ``unit``, but at most 1/(4√u).

    Where a leap has no full rank, as that of real square matrices of odd size, the least singular value of X − leap is
    that of X. Beyond this length it is lost in the rounding of X − leap, and there is no nearest point.

    Args:
        size: the Frobenius norm of each leap.
        unit: what it was divided by.
    """
    info = torch.finfo(size.dtype)
    longest: float = 0.25 / info.eps**0.5
    return torch.minimum(longest / size, unit).clamp_max(info.max)  # an infinite unit times a leap of zero is zero
