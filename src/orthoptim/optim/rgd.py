"""RGD: Riemannian gradient descent with a retraction."""

from collections.abc import Mapping
from typing import Any, Unpack

from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import SGD, Base, Direction, State
from orthoptim.literals import Metric, Retraction
from orthoptim.optim.common_options import CommonOptions
from orthoptim.optim.orthoptimizer import Orthoptimizer, Params
from orthoptim.stiefel import ColumnSums, Update
from orthoptim.validation import check_choice

_FAR = 0.1  # beyond what rounding to half precision explains


class RGD(Orthoptimizer):
    r"""Riemannian gradient descent.

    .. math::
        D = G - \operatorname{Sym}(GX^H)X,\qquad X ← \operatorname{retract}(X - ηD)

    Every iterate is on the manifold; the price is a matrix decomposition in every step. A matrix whose X − ηD is not
    finite or has no full rank to working precision keeps its value, and the step is counted as skipped. The next step
    brings back a matrix that was written far from the manifold; if its norm reveals that, the step is counted as
    rescued. A matrix without full rank keeps its value.

    Retractions other than ``"qr"`` and ``"cholesky"`` wait for the device: torch checks whether an eigendecomposition
    has succeeded.

    Args:
        {params}
        lr: η.
        base: turns the gradient into the direction G.
        metric: ``"euclidean"`` (above) or ``"canonical"``, D = G − XGᴴX.
        retraction: ``"qr"``, ``"polar"`` (the nearest point), ``"cholesky"`` (QR by a Cholesky factor: the fastest,
            and the fewest bytes between ranks), ``"cayley"`` (the Cayley transform, by a linear system) or
            ``"cayley-iterative"`` (the same by two fixed-point iterations, which shorten steps beyond their reach;
            products only).
        {common}

    Example:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.eye(2, 3))
        >>> opt = RGD([x], lr=0.1, retraction="polar")
        >>> x.grad = torch.ones(2, 3)
        >>> opt.step()
    """

    algorithm = "rgd"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        base: Base = SGD(),  # noqa: B008  (never changed)
        *,
        metric: Metric = "euclidean",
        retraction: Retraction = "qr",
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, lr, base, metric=metric, retraction=retraction, **common)

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> ColumnSums[Update]:
        """See :meth:`Orthoptimizer.update`."""
        if group["retraction"] in stiefel.CAYLEY:
            rotated: Update = yield _cayley(x, direction, lr, group)
            return rotated
        g = direction.matrices
        b, square = yield [x @ g.mH, stiefel.square_norm(x)]
        y = stiefel.tangent_leap(x, g, b, direction.times(lr), group["metric"])
        new, probe = yield stiefel.RETRACTIONS[group["retraction"]](y)
        return Update(new, rescued=stiefel.is_scaled(square, x.shape[-2]), finiteness_probe=probe)

    @classmethod
    def steps_columns(cls, group: Mapping[str, Any]) -> bool:
        """See :meth:`Orthoptimizer.steps_columns`; Householder's QR and Cayley's transform need all of them."""
        return bool(group["retraction"] in ("polar", "cholesky"))

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        check_choice("metric", group["metric"], stiefel.METRICS)
        check_choice("retraction", group["retraction"], (*stiefel.RETRACTIONS, *stiefel.CAYLEY))
        if group["capturable"] and group["retraction"] not in ("qr", "cholesky"):
            name = group["retraction"]
            raise ValueError(f"Invalid capturable: retraction={name!r} waits for the device; use 'qr' or 'cholesky'")


def _cayley(x: Tensor, direction: Direction, lr: Tensor, group: Mapping[str, Any]) -> ColumnSums[Update]:
    """A rotation leaves XXᴴ as it is: what was written off the manifold is projected first, and counted as rescued."""
    far = ~(stiefel.distance(x) <= _FAR)
    start, probe = yield stiefel.project_where(far, x)
    d = stiefel.tangent(start, direction.matrices, group["metric"])
    new = stiefel.CAYLEY[group["retraction"]](start, d, direction.times(lr))
    # a step whose length overflows has nothing to rotate by
    return Update(new + (0 * probe)[:, None, None], rescued=far)
