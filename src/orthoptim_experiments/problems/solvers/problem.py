"""Problems in one matrix for solvers of any kind, with the number of their evaluations."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.harness.experiment import DTYPES, Config, Outcome, Problem
from orthoptim_experiments.problems.matrix import MatrixProblem, start
from orthoptim_experiments.problems.pca.problem import PCAProblem
from orthoptim_experiments.problems.procrustes.problem import ProcrustesProblem
from orthoptim_experiments.problems.stepwise import ForeignSolver

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


class Solving(Problem):
    """A problem in one matrix that counts evaluations: points where f or ∇f was computed, and Hessian products.

    Args:
        problem: the problem.
        searches: whether a line search chooses the lengths of steps.
    """

    def __init__(self, problem: MatrixProblem, searches: bool) -> None:
        self.problem, self.searches = problem, searches
        self.budget = problem.budget
        self.evaluations = 0
        self.search: oo.LineSearch | None = None
        self._coarse = [False, False]  # whether the gap was reached before, and is now

    def parameters(self) -> list[Tensor]:
        """The matrix."""
        return self.problem.parameters()

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """See :meth:`Problem.begin`."""
        super().begin(optimizer)
        self.problem.begin(optimizer)
        if isinstance(optimizer, ForeignSolver):
            optimizer.attach(self)
            return
        self.evaluations = 1
        if not self.searches:
            return
        assert isinstance(optimizer, oo.Orthoptimizer)
        self.search = oo.LineSearch(optimizer)
        self.evaluations = 0  # it evaluates the start itself

    def closure(self) -> float:
        """Value and gradient."""
        self.problem.differentiate()
        self.evaluations += 1
        return self.problem.value()

    def advance(self) -> None:
        """See :meth:`Problem.advance`."""
        if isinstance(self.optimizer, ForeignSolver):
            self.optimizer.step()
        elif self.search is not None:
            self.search.step(self.closure)
        else:
            self.optimizer.step()
            self.problem.differentiate()
            self.evaluations += 1
        self.step += 1
        self.problem.step = self.step

    def due(self) -> bool:
        """Every ``stride`` steps, and when the coarse gap is reached."""
        return self.problem.due() or self._coarse == [False, True]

    def evaluate(self) -> dict[str, float]:
        """That of the problem, and the number of evaluations."""
        return {**self.problem.evaluate(), "evaluations": self.evaluations}

    def outcome(self) -> Outcome | None:
        """See :meth:`Problem.outcome`."""
        self._coarse = [any(self._coarse), self.problem.gap(self.problem.value()) < COARSE]
        outcome = self.problem.outcome()
        if isinstance(self.optimizer, ForeignSolver):
            if outcome is None and self.optimizer.finished:
                outcome = Outcome("budget", f"the solver stopped by itself after {self.step} steps")
            if outcome is not None:
                self.optimizer.abandon()
        return outcome

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Problem.state_dict`."""
        search = {} if self.search is None else self.search.state_dict()
        return {"problem": self.problem.state_dict(), "evaluations": self.evaluations, "search": search}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Problem.load_state_dict`; a solver with a loop of its own does it all again."""
        if isinstance(self.optimizer, ForeignSolver):
            while self.step < state["problem"]["step"]:
                self.advance()
            return
        self.problem.load_state_dict(state["problem"])
        self.step, self.evaluations = self.problem.step, state["evaluations"]
        if self.search is not None:
            self.search.load_state_dict(state["search"])
