"""A non-monotone line search around an optimizer, for deterministic problems."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import Base
from orthoptim.optim.orthoptimizer import Orthoptimizer
from orthoptim.tensors import HALF_DTYPES, is_dtensor
from orthoptim.validation import check_number, check_positive_integer
from orthoptim.views import View

Closure = Callable[[], float | Tensor]


class LineSearch:
    r"""Shorten the steps of an optimizer until they descend enough; for deterministic problems.

    The optimizer steps from X to X + S, and θ = 1. The step is taken if

    .. math::
        f(X_θ) ≤ C + c_1 θ ⟨T, S⟩ \quad\text{and, where c2 is given,}\quad |⟨T_θ, S⟩| ≤ c_2 |⟨T, S⟩|,\qquad
        X_θ = \operatorname{polar}(X + θS),

    with T and T_θ the tangent parts of the gradients at X and at X_θ; else another θ is tried, from the slopes. C is
    Zhang and Hager's average of the losses so far, :math:`C ← (ηQC + f)/(ηQ + 1),\; Q ← ηQ + 1`, so that single steps
    may ascend, as those of :class:`BB` must. There is one θ for all parameters.

    The optimizer keeps its state: :class:`BB`, :class:`CG` and :class:`LBFGS` compute S from the points they meet.
    A gradient that was computed at the last θ serves the next step: a step takes one evaluation, if θ = 1 is taken.

    ``step`` waits for the device, as that of torch.optim.LBFGS does, and holds two copies of the parameters.
    docs/bases/bb.md says when BB needs no search.

    Args:
        optimizer: an orthoptimizer, such as ``POGO(params, base=BB())``.
        eta: Zhang and Hager's η; 0: a loss may not exceed the last one; 1: the average of all.
        c1: the share of the predicted descent that is asked for.
        c2: the bound on the slope at X_θ; by default what the base asks for: 0.9 with :class:`LBFGS`, 0.1 with
            :class:`CG`, none with the others.
        max_ls: the number of θ to try; then X stays.

    Attributes:
        func_evals: how often a closure has been called.

    Example:
        >>> import orthoptim as oo
        >>> x = torch.nn.Parameter(torch.eye(2, 3))
        >>> search = oo.LineSearch(oo.POGO([x], base=oo.BB()))
        >>> def closure():
        ...     search.optimizer.zero_grad()
        ...     loss = (x - torch.eye(2, 3).flip(0)).square().sum() / 2
        ...     loss.backward()
        ...     return loss
        >>> losses = [float(search.step(closure)) for _ in range(20)]
    """

    def __init__(
        self,
        optimizer: Orthoptimizer,
        *,
        eta: float = 0.85,
        c1: float = 1e-4,
        c2: float | None = None,
        max_ls: int = 25,
    ) -> None:
        for name, value in {"eta": eta, "c1": c1, **({} if c2 is None else {"c2": c2})}.items():
            check_number(name, value)
            if not 0 <= value <= 1:
                raise ValueError(f"Invalid {name} value: {value}; it must be between 0 and 1")
        check_positive_integer("max_ls", max_ls)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        if any(is_dtensor(param) or param.dtype in HALF_DTYPES for param in params):
            raise ValueError("LineSearch needs plain parameters in float32 or better, no DTensors")
        if len({group["maximize"] for group in optimizer.param_groups}) > 1:
            raise ValueError("LineSearch needs one value of maximize for all groups")
        bases = [Base.named(group["base"]) for group in optimizer.param_groups if "base" in group]
        asked = [base.default_curvature for base in bases if base.default_curvature is not None]
        self.optimizer = optimizer
        self.eta, self.c1, self.max_ls = eta, c1, max_ls
        self.c2 = min(asked, default=None) if c2 is None else c2
        self.func_evals = 0
        self._reference = math.inf  # C
        self._weight = 0.0  # Q
        self._known: tuple[float, list[Any]] = math.nan, []

    @torch.no_grad()
    def step(self, closure: Closure) -> float:
        """Perform one step; return the loss at the point where it began.

        Args:
            closure: clears the gradients, computes the loss and its gradients, and returns the loss.
        """
        loss, marks = self._known
        if not _same(marks, self._marks()):
            loss = self._evaluate(closure)
        if self._weight == 0:
            self._reference, self._weight = self._sign * loss, 1.0
        points = [param.detach().clone() for param in self._params()]
        gradients = [param.grad for param in self._params()]
        self.optimizer.step()
        moves = [param.detach() - x for param, x in zip(self._params(), points, strict=True)]
        slope = self._slope(points, gradients, moves)
        if math.isfinite(loss) and math.isfinite(slope):
            self._search(closure, points, moves, slope)
        new = self._sign * self._known[0]
        if _same(self._known[1], self._marks()) and math.isfinite(new):
            kept = self.eta * self._weight
            self._reference = (kept * self._reference + new) / (kept + 1)
            self._weight = kept + 1
        return loss

    def _search(self, closure: Closure, points: list[Tensor], moves: list[Tensor], slope: float) -> None:
        """Try θ until one is accepted.

        Args:
            closure: see :meth:`step`.
            points: X.
            moves: S, by which the optimizer has moved.
            slope: ⟨T,S⟩.
        """
        theta, low, high = 1.0, 0.0, math.inf
        last, last_slope = 0.0, slope
        for _ in range(self.max_ls):
            value = self._sign * self._evaluate(closure)
            limit = self._reference + self.c1 * theta * min(slope, 0.0) + self._rounding
            too_high = not value <= limit
            if not too_high and self.c2 is None:
                return
            here = self._slope([p.detach() for p in self._params()], [p.grad for p in self._params()], moves)
            if not too_high and not abs(here) > (self.c2 or 0.0) * abs(slope):
                return
            if too_high or here >= 0:
                high = theta
            else:
                low = theta
            # to the zero of the slope, as two of them say
            target = theta - here * (theta - last) / (here - last_slope) if here > last_slope else math.inf
            last, last_slope = theta, here
            theta = _between(target, low, high) if math.isfinite(value) else 0.1 * theta
            self._move(points, moves, theta)
        if too_high:
            self._move(points, moves, 0.0)
        self._evaluate(closure)

    def _move(self, points: list[Tensor], moves: list[Tensor], theta: float) -> None:
        """Go to X_θ."""
        for (param, group), x, move in zip(self._grouped(), points, moves, strict=True):
            if theta == 0 or "view" not in group:
                param.copy_(torch.add(x, move, alpha=theta))
                continue
            view, side = View.of(group["view"]).scaled(group["scale"]), group["side"]
            landed = [
                stiefel.on_one_device(stiefel.RETRACTIONS["polar"](y)).x
                for y in view.to_matrices(torch.add(x, move, alpha=theta), side)
            ]
            param.copy_(view.from_matrices(landed, param.shape, side))

    def _slope(self, points: list[Tensor], gradients: list[Tensor | None], moves: list[Tensor]) -> float:
        """⟨T,S⟩ over all parameters."""
        total = 0.0
        for (_, group), x, grad, move in zip(self._grouped(), points, gradients, moves, strict=True):
            if grad is None:
                continue
            if "view" in group:
                view, side = View.of(group["view"]), group["side"]
                orthonormal = view.scaled(group["scale"]).to_matrices(x, side)
                matrices = (view.to_matrices(tensor, side) for tensor in (grad, move))
                for y, g, s in zip(orthonormal, *matrices, strict=True):
                    total += float(stiefel.inner(stiefel.tangent(y, g), s).sum())
            else:
                total += float((grad.conj() * move).real.sum())
        return self._sign * total

    def _evaluate(self, closure: Closure) -> float:
        """The loss where the parameters are, whose gradients are left behind."""
        with torch.enable_grad():
            result = closure()
        loss = float(result.detach() if isinstance(result, Tensor) else result)
        self.func_evals += 1
        self._known = loss, self._marks()
        return loss

    def _marks(self) -> list[Any]:
        """What changes when a parameter or its gradient does."""
        grads = [param.grad for param in self._params()]
        return [
            (param._version, grad, None if grad is None else grad._version)
            for param, grad in zip(self._params(), grads, strict=True)
        ]

    def _grouped(self) -> list[tuple[Tensor, dict[str, Any]]]:
        return [(param, group) for group in self.optimizer.param_groups for param in group["params"]]

    def _params(self) -> list[Tensor]:
        return [param for param, _ in self._grouped()]

    @property
    def _sign(self) -> float:
        return -1.0 if self.optimizer.param_groups[0]["maximize"] else 1.0

    @property
    def _rounding(self) -> float:
        """By how much a loss may seem higher than it is."""
        eps = max(torch.finfo(param.dtype).eps for param in self._params())
        return 4 * eps * abs(self._reference)

    def state_dict(self) -> dict[str, float]:
        """The average of the losses; the optimizer has a ``state_dict`` of its own."""
        return {"reference": self._reference, "weight": self._weight, "func_evals": self.func_evals}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self._reference, self._weight = float(state_dict["reference"]), float(state_dict["weight"])
        self.func_evals = int(state_dict["func_evals"])
        self._known = math.nan, []


def _same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) > 0 and all(
        a[0] == b[0] and a[1] is b[1] is not None and a[2] == b[2] for a, b in zip(one, two, strict=True)
    )


def _between(target: float, low: float, high: float) -> float:
    """The target, or the nearest θ that makes the interval a tenth smaller at least, or at most twice as long."""
    if math.isinf(high):
        return min(max(target, 1.1 * low), 2 * low)
    margin = 0.1 * (high - low)
    return min(max(target, low + margin), high - margin)
