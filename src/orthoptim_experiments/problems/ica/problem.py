"""Orthogonal independent component analysis with the log-cosh contrast."""

import math

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.harness.experiment import Config, Outcome
from orthoptim_experiments.problems.ica.data import amari, mixture
from orthoptim_experiments.problems.stepwise import SolverProblem


class Unmixing(SolverProblem):
    """Minimise the mean of Σ log cosh(WZ) over orthogonal W.

    Args:
        config: with ``n``, ``side``, ``budget``, ``tolerance`` (of the gradient norm) and ``stride``.
        seed: that of the mixture and of the start.
        searches: whether a line search chooses the lengths of steps.
    """

    def __init__(self, config: Config, seed: int, searches: bool) -> None:
        self.z, self.mixing, start = mixture(config["variant"], config["n"], config["side"], seed)
        super().__init__(torch.nn.Parameter(start.clone()), searches)
        self.budget: int = config["budget"]
        self.stride: int = config["stride"]
        self.tolerance: float = config["tolerance"]
        self.y = self.z  # WZ, where the gradient was computed
        self.sources: Tensor | None = None  # of a solver that shows no more of its W
        self._measured: tuple[int, float] = (-1, math.nan)

    def differentiate(self) -> None:
        """See :meth:`SolverProblem.differentiate`."""
        self.y = self.x.detach() @ self.z
        self.x.grad = torch.tanh(self.y) @ self.z.T / self.z.shape[1]

    def value(self) -> float:
        """See :meth:`SolverProblem.value`."""
        return log_cosh(self.y)

    def point(self) -> Tensor:
        """W, where the solver is now."""
        return self.x.detach() if self.sources is None else self.sources @ self.z.T / self.z.shape[1]

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

    def reached(self) -> Outcome | None:
        """See :meth:`SolverProblem.reached`."""
        if self.gradient_norm() < self.tolerance:
            return Outcome("converged")
        return Outcome("budget") if self.step >= self.budget else None


def log_cosh(y: Tensor) -> float:
    """The mean over samples of Σ log cosh."""
    size = y.abs()
    return float((size + torch.log1p(torch.exp(-2 * size))).sum()) / y.shape[1] - y.shape[0] * math.log(2)
