"""Orthogonal independent component analysis with the log-cosh contrast."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.harness.experiment import Config, Outcome, Problem
from orthoptim_experiments.problems.ica.data import amari, mixture
from orthoptim_experiments.problems.stepwise import ForeignSolver


class Unmixing(Problem):
    """Minimise the mean of Σ log cosh(WZ) over orthogonal W.

    Args:
        config: with ``n``, ``side``, ``budget``, ``tolerance`` (of the gradient norm) and ``stride``.
        seed: that of the mixture and of the start.
        searches: whether a line search chooses the lengths of steps.
    """

    def __init__(self, config: Config, seed: int, searches: bool) -> None:
        self.z, self.mixing, start = mixture(config["variant"], config["n"], config["side"], seed)
        self.w = torch.nn.Parameter(start.clone())
        self.budget: int = config["budget"]
        self.stride: int = config["stride"]
        self.tolerance: float = config["tolerance"]
        self.searches = searches
        self.search: oo.LineSearch | None = None
        self.evaluations = 0.0
        self.sources: Tensor | None = None  # of a solver that shows no more of its W
        self._measured: tuple[int, float] = (-1, math.nan)

    def parameters(self) -> list[Tensor]:
        """The matrix W."""
        return [self.w]

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """See :meth:`Problem.begin`."""
        super().begin(optimizer)
        if isinstance(optimizer, ForeignSolver):
            optimizer.attach(self)
        elif self.searches:
            assert isinstance(optimizer, oo.Orthoptimizer)
            self.search = oo.LineSearch(optimizer)
        else:
            self.differentiate()

    def differentiate(self) -> Tensor:
        """Set the gradient, and return WZ."""
        y = self.w.detach() @ self.z
        self.w.grad = torch.tanh(y) @ self.z.T / self.z.shape[1]
        self.evaluations += 1
        return y

    def closure(self) -> float:
        """Value and gradient."""
        return log_cosh(self.differentiate())

    def advance(self) -> None:
        """See :meth:`Problem.advance`."""
        if isinstance(self.optimizer, ForeignSolver):
            self.optimizer.step()
        elif self.search is not None:
            self.search.step(self.closure)
        else:
            self.optimizer.step()
            self.differentiate()
        self.step += 1

    def point(self) -> Tensor:
        """W, where the solver is now."""
        return self.w.detach() if self.sources is None else self.sources @ self.z.T / self.z.shape[1]

    def gradient_norm(self) -> float:
        """‖Skew(E[tanh(y)yᵀ])‖_F at the nearest orthogonal matrix; computed once for a point."""
        if self._measured[0] != self.step:
            y = oo.project_(self.point().clone()) @ self.z
            gradient = torch.tanh(y) @ y.T / y.shape[1]
            self._measured = self.step, float((gradient - gradient.T).norm()) / 2
        return self._measured[1]

    def due(self) -> bool:
        """Every ``stride`` steps."""
        return self.step % self.stride == 0

    def evaluate(self) -> dict[str, float]:
        """Contrast, norm of its gradient, distances from the manifold and, where it is known, from the mixing."""
        w = self.point()
        away = float(oo.distance(w))
        values = {"loss": log_cosh(w @ self.z), "gradient_norm": self.gradient_norm(), "evaluations": self.evaluations}
        known = {} if self.mixing is None else {"amari": amari(w @ self.mixing)}
        return {**values, "distance": away, "max_distance": away, **known}

    def outcome(self) -> Outcome | None:
        """See :meth:`Problem.outcome`."""
        outcome = None
        if self.gradient_norm() < self.tolerance:
            outcome = Outcome("converged")
        elif self.step >= self.budget:
            outcome = Outcome("budget")
        if isinstance(self.optimizer, ForeignSolver):
            if outcome is None and self.optimizer.finished:
                outcome = Outcome("budget", f"the solver stopped by itself after {self.step} steps")
            if outcome is not None:
                self.optimizer.abandon()
        return outcome

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Problem.state_dict`."""
        return {
            "step": self.step,
            "w": self.w.detach(),
            "evaluations": self.evaluations,
            "optimizer": self.optimizer.state_dict(),
            "search": {} if self.search is None else self.search.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Problem.load_state_dict`; a solver with a loop of its own does it all again."""
        if isinstance(self.optimizer, ForeignSolver):
            while self.step < state["step"]:
                self.advance()
            return
        self.optimizer.load_state_dict(state["optimizer"])
        self.w.copy_(state["w"])
        self.step = state["step"]
        if self.search is not None:
            self.search.load_state_dict(state["search"])
        else:
            self.differentiate()
        self.evaluations = state["evaluations"]


def log_cosh(y: Tensor) -> float:
    """The mean over samples of Σ log cosh."""
    size = y.abs()
    return float((size + torch.log1p(torch.exp(-2 * size))).sum()) / y.shape[1] - y.shape[0] * math.log(2)
