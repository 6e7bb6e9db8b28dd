"""Landing: an infeasible method whose field pulls towards the manifold."""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import SGD, Base, Direction, State
from orthoptim.optim.common_options import CommonOptions
from orthoptim.optim.orthoptimizer import Orthoptimizer, Params
from orthoptim.stiefel import ColumnSums, Update
from orthoptim.validation import check_choice, check_positive

_MARGIN = 1.01  # of the safe region, for rounding
_ROUNDED = 0.1  # no orthonormal matrix of half precision is farther away than that


class Landing(Orthoptimizer):
    r"""The landing algorithm, with its safe step size for each matrix.

    .. math::
        Λ = R + λ(XX^H - I)X,\qquad X ← X - η'Λ,\qquad
        η' = \min\Bigl\{η,\; \frac{a + \sqrt{a^2 + g^2 \max(ε - d, 0)}}{g^2},\; \frac{1}{2λ}\Bigr\}

    with R the relative gradient, d = ‖XXᴴ−I‖_F, g = ‖Λ‖_F and a = λd(1−d) − w/2. Only matrix products; the distance
    never exceeds ε from a start inside, and vanishes in the limit.

    Momentum is a heavy ball of relative gradients, as in its authors' code. (An average of gradients would hold their
    normal parts, too: at another point these are not normal, and where they are large the method ends far from the
    solution.) The average B is not tangent at X, as the step size takes R to be: with B in the place of R the distance
    leaves the safe region. So R is B taken to the tangent space, R = XS with S = 2 Skew(XᴴB) − Xᴴ Skew(BXᴴ)X, which on
    the manifold is B − Sym(BXᴴ)X, and is B where that is tangent.

    In floating point R is not tangent either where the gradient is huge and almost normal: w = ‖RXᴴ+XRᴴ‖_F, zero in the
    authors' step size, is measured.

    No step leads out of the safe region. A matrix that was written there is landed without its gradient, after scaling
    if it is too large, and counted as rescued; what has no full rank stays outside.

    Args:
        {params}
        lr: η, the longest step size.
        base: turns the gradient into the direction; ``SGD(momentum=...)`` is the heavy ball.
        lam: λ, the strength of the pull.
        eps: ε, the radius of the safe region. (An ``eps`` of the base optimizer is called ``base_eps`` in the group.)
        momentum_of: what ``SGD(momentum=...)`` averages: ``"relative"`` gradients, or the ``"gradient"`` itself. Other
            bases are given the gradient.
        {common}

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
        momentum_of: str = "relative",
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, lr, base, lam=lam, eps=eps, momentum_of=momentum_of, **common)

    @staticmethod
    def gradient(x: Tensor, grad: Tensor, group: Mapping[str, Any]) -> Tensor:
        """See :meth:`Orthoptimizer.gradient`."""
        return stiefel.relative_gradient(x, grad)

    @classmethod
    def replaces_gradient(cls, group: Mapping[str, Any]) -> bool:
        """See :meth:`Orthoptimizer.replaces_gradient`."""
        base = Base.named(group["base"])
        averages = base.linear and bool(base.buffers(cls.hyperparameters(group)))
        return averages and group["momentum_of"] == "relative"

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> ColumnSums[Update]:
        """See :meth:`Orthoptimizer.update`."""
        g, eps = direction.matrices, group["eps"]
        a, b, entry = yield [x @ x.mH, x @ g.mH, stiefel.largest(g)]
        # Λ over a bound of its size: its square does not overflow
        unit = (entry if direction.scale is None else entry * direction.scale).clamp_min(1)
        lam, factor = (group["lam"] / unit)[:, None, None], direction.times(1 / unit)
        c = stiefel.subtract_identity(a.clone())
        d = stiefel.norm(c)
        if Landing.replaces_gradient(group):  # XS with S = 2 Skew(XᴴG) − Xᴴ Skew(GXᴴ)X; it is G where that is tangent
            left, right = factor * a, lam * c - factor * (b + a @ stiefel.skew(b.mH))
        else:
            left, right = landing_field(a, b, c, lam, factor)
        far = ~(d <= _MARGIN * eps)
        is_far = far[:, None, None]
        pull = pull_back(c) / unit[:, None, None]
        field = torch.baddbmm(torch.where(is_far, 0, left) @ g, torch.where(is_far, pull, right), x)
        square, cross = yield [stiefel.square_norm(field), field @ x.mH]
        size, slope = square.sqrt() * unit, first_order(cross, c, lam) * unit
        eta = torch.where(far, 1, safe_length(d, size, slope, lr, group["lam"], eps))
        new = x - (eta * unit)[:, None, None] * field
        clipped = (eta != lr) & ~far
        return Update(new, clipped=clipped, rescued=outside(d, eps), finiteness_probe=d + eta * size)

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        check_positive("lam", group["lam"])
        check_positive("eps", group["eps"])
        if group["eps"] >= 1:
            raise ValueError(f"Invalid eps value: {group['eps']}; the safe region has a radius between 0 and 1")
        check_choice("momentum_of", group["momentum_of"], ("relative", "gradient"))


def safe_length(d: Tensor, size: Tensor, slope: Tensor, lr: Tensor, lam: float, eps: float) -> Tensor:
    """η′ for each matrix, at most |η| in size and of its sign.

    From ‖X⁺X⁺ᴴ − I‖ ≤ d − 2ηλd(1 − d) + |η|w + η²g² ≤ ε; a negative η pushes is_far, by 2ηλd(1 + d).

    Args:
        d: distance.
        size: g, that of the field.
        slope: w, see :func:`first_order`.
        lr: η.
        lam: λ.
        eps: ε.
    """
    size = size.clamp_min(torch.finfo(d.dtype).tiny)
    # divided by g once: g² overflows long before g does
    pull = (torch.where(lr < 0, -lam * d * (1 + d), lam * d * (1 - d)) - 0.5 * slope) / size
    safe = (pull + torch.sqrt(pull**2 + (eps - d).clamp_min(0))) / size
    limit = safe.clamp(0, 1 / (2 * lam))
    return torch.minimum(torch.maximum(lr, -limit), limit)


def first_order(cross: Tensor, c: Tensor, lam: Tensor) -> Tensor:
    """The w = ‖ΛXᴴ + XΛᴴ − 2λ(C + C²)‖_F from ΛXᴴ and C: what Λ changes XXᴴ by, to first order, beyond its pull.

    It is rounding where R is the relative gradient at X; that of a huge and almost normal gradient is not small.
    """
    return stiefel.norm(cross + cross.mH - 2 * lam * torch.baddbmm(c, c, c))


def outside(d: Tensor, eps: float) -> Tensor:
    """Which matrices somebody wrote outside of the safe region: no step leads there, and no rounding to half precision.

    Args:
        d: distance; not a number where XXᴴ overflows.
        eps: the radius of the region.
    """
    return ~(d <= max(_MARGIN * eps, _ROUNDED))


def pull_back(c: Tensor) -> Tensor:
    """P such that X − PX lands a matrix that is outside of the safe region."""
    q = stiefel.land(c.clone(), stiefel.policy("safe")).matrix()
    return -q


def landing_field(a: Tensor, b: Tensor, c: Tensor, lam: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """P and Q such that the field Λ = R + λCX is PG + QX, from A = XXᴴ, B = XGᴴ and C = A − I.

    Λ = ½AG + (λC − ½B)X; λ and a factor of G are numbers or (B, 1, 1).
    """
    half = 0.5 * factor
    return half * a, lam * c - half * b
