"""Problems in one matrix for solvers of any kind, with the number of their evaluations."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim_experiments.harness.experiment import DTYPES, Config, Outcome
from orthoptim_experiments.problems.matrix import MatrixProblem, start
from orthoptim_experiments.problems.pca.problem import PCAProblem
from orthoptim_experiments.problems.procrustes.problem import ProcrustesProblem
from orthoptim_experiments.problems.stepwise import SolverProblem

COARSE = 1e-6
"""A gap on the way, at which there is a record."""


class Instance(NamedTuple):
    """The data of one seed, in double precision."""

    a: Tensor
    optimum: float
    start: Tensor


@lru_cache(maxsize=1)
def instance(p: int, side: int, seed: int) -> Instance:
    """The Laplacian of a square grid with a random potential, the least value, and a start."""
    generator = torch.Generator().manual_seed(seed)
    line = 2 * torch.eye(side, dtype=torch.float64)
    line -= torch.diag(torch.ones(side - 1, dtype=torch.float64), 1) + torch.diag(
        torch.ones(side - 1, dtype=torch.float64), -1
    )
    identity = torch.eye(side, dtype=torch.float64)
    potential = torch.rand(side * side, dtype=torch.float64, generator=generator)
    a = torch.kron(line, identity) + torch.kron(identity, line) + torch.diag(potential)
    values = torch.linalg.eigvalsh(a)[:p]
    weights = torch.arange(p, 0, -1, dtype=torch.float64)
    return Instance(a, 0.5 * float(weights @ values), start(p, side * side, generator))


class BrockettProblem(MatrixProblem):
    """Minimise ½ tr(NXAXᵀ), N = diag(p, …, 1): the rows are the p least eigenvectors of a sparse A, in order."""

    def __init__(self, config: Config, seed: int, dtype: str) -> None:
        data = instance(config["p_sparse"], config["side"], seed)
        self.exact = data.a.to(config["device"])
        self.a = self.exact.to(DTYPES[dtype])
        self.weights = torch.arange(config["p_sparse"], 0, -1, dtype=DTYPES[dtype], device=config["device"])[:, None]
        super().__init__(config, data.start.to(self.a), data.optimum)

    def differentiate(self) -> None:
        """See :meth:`MatrixProblem.differentiate`."""
        self.x.grad = self.weights * (self.x.detach() @ self.a)

    def value(self) -> float:
        """See :meth:`MatrixProblem.value`."""
        assert self.x.grad is not None
        return 0.5 * float((self.x.detach().double() * self.x.grad.double()).sum())

    def value_at(self, x: Tensor) -> float:
        """See :meth:`MatrixProblem.value_at`."""
        return 0.5 * float((self.weights.double() * (x @ self.exact) * x).sum())


PROBLEMS: dict[str, type[MatrixProblem]] = {
    "pca": PCAProblem,
    "procrustes": ProcrustesProblem,
    "brockett": BrockettProblem,
}


def hessian(problem: MatrixProblem, v: Tensor) -> Tensor:
    """The derivative of the gradient along V; all problems here are quadratic."""
    if isinstance(problem, PCAProblem):
        return -v @ problem.a
    if isinstance(problem, ProcrustesProblem):
        return problem.a.mT @ (problem.a @ v) / problem.n
    assert isinstance(problem, BrockettProblem)
    return problem.weights * (v @ problem.a)


class Solving(SolverProblem):
    """One of the problems above.

    Args:
        problem: the problem.
        searches: whether a line search chooses the lengths of steps.
    """

    def __init__(self, problem: MatrixProblem, searches: bool) -> None:
        super().__init__(problem.x, searches)
        self.problem, self.budget = problem, problem.budget
        self._coarse = [False, False]  # whether the gap was reached before, and is now

    def differentiate(self) -> None:
        """See :meth:`SolverProblem.differentiate`."""
        self.problem.differentiate()

    def value(self) -> float:
        """See :meth:`SolverProblem.value`."""
        return self.problem.value()

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """See :meth:`Problem.begin`."""
        self.problem.begin(optimizer)
        super().begin(optimizer)

    def advance(self) -> None:
        """See :meth:`Problem.advance`."""
        super().advance()
        self.problem.step = self.step

    def due(self) -> bool:
        """Every ``stride`` steps, and when the coarse gap is reached."""
        return self.problem.due() or self._coarse == [False, True]

    def evaluate(self) -> dict[str, float]:
        """That of the problem, and the number of evaluations."""
        return {**self.problem.evaluate(), "evaluations": self.evaluations}

    def reached(self) -> Outcome | None:
        """See :meth:`SolverProblem.reached`."""
        self._coarse = [any(self._coarse), self.problem.gap(self.problem.value()) < COARSE]
        return self.problem.outcome()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Problem.load_state_dict`."""
        super().load_state_dict(state)
        self.problem.step = self.step
