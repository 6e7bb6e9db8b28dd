"""Problems for solvers of any kind, one step at a time; those of other libraries run a loop of their own."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.harness.experiment import Outcome, Problem


class _Abandoned(BaseException):
    """Ends the thread of a solver that nobody will resume."""


class ForeignSolver(torch.optim.Optimizer):
    """A solver that calls functions of a problem in a loop of its own, in a thread that waits between its iterations.

    A step resumes it until it asks for its next gradient. Its time is that of the step.

    Attributes:
        finished: whether it has stopped by itself.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self.finished = False
        self._resume, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._error: Exception | None = None
        self._abandoned = False

    @abstractmethod
    def solve(self, problem: Any, pause: Callable[[], None]) -> None:
        """Run the solver on a problem; call ``pause`` wherever it has a new iterate."""

    def attach(self, problem: Any) -> None:
        """Start on a problem, and stop at the first iterate."""

        def run() -> None:
            self._resume.acquire()
            try:
                self.solve(problem, self._pause)
            except _Abandoned:
                pass
            except Exception as error:  # to be raised by the step
                self._error = error
            self.finished = True
            self._paused.release()

        threading.Thread(target=run, daemon=True).start()
        self.step()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Go on to the next iterate; nothing, if the solver has stopped."""
        if self.finished:
            return
        self._resume.release()
        self._paused.acquire()
        if self._error is not None:
            raise self._error

    def _pause(self) -> None:
        self._paused.release()
        self._resume.acquire()
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """End the thread."""
        self._abandoned = True
        self._resume.release()


class SolverProblem(Problem):
    """A smooth problem in one matrix for bases of POGO, with or without a line search, and for foreign solvers.

    Args:
        x: the matrix, at its start.
        searches: whether a line search chooses the lengths of steps.

    Attributes:
        evaluations: points where the function or its gradient was computed, and Hessian products.
    """

    def __init__(self, x: Tensor, searches: bool) -> None:
        self.x, self.searches = x, searches
        self.search: oo.LineSearch | None = None
        self.evaluations = 0.0

    @abstractmethod
    def differentiate(self) -> None:
        """Set the gradient at X, and keep what :meth:`value` needs."""

    @abstractmethod
    def value(self) -> float:
        """F(X), from what :meth:`differentiate` left."""

    @abstractmethod
    def reached(self) -> Outcome | None:
        """The outcome by what the problem sees: converged, diverged, or no steps left."""

    def parameters(self) -> list[Tensor]:
        """The matrix."""
        return [self.x]

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """See :meth:`Problem.begin`."""
        super().begin(optimizer)
        if isinstance(optimizer, ForeignSolver):
            optimizer.attach(self)
        elif self.searches:
            assert isinstance(optimizer, oo.Orthoptimizer)
            self.search = oo.LineSearch(optimizer)  # it evaluates the start itself
        else:
            self._count_gradient()

    def closure(self) -> float:
        """Value and gradient."""
        self._count_gradient()
        return self.value()

    def _count_gradient(self) -> None:
        self.differentiate()
        self.evaluations += 1

    def advance(self) -> None:
        """See :meth:`Problem.advance`."""
        if isinstance(self.optimizer, ForeignSolver):
            self.optimizer.step()
        elif self.search is not None:
            self.search.step(self.closure)
        else:
            self.optimizer.step()
            self._count_gradient()
        self.step += 1

    def outcome(self) -> Outcome | None:
        """See :meth:`Problem.outcome`."""
        outcome = self.reached()
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
            "x": self.x.detach(),
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
        self.x.copy_(state["x"])
        self.step, self.evaluations = state["step"], state["evaluations"]
        self.differentiate()
        if self.search is not None:
            self.search.load_state_dict(state["search"])


def searches(method: str) -> bool:
    """Whether a contender has a line search, by its name."""
    return method.partition(":")[0].endswith("-search")


def limit_threads(threads: int) -> None:
    """Let numpy, in which other libraries compute, use no more threads than torch; threadpoolctl is scikit-learn's."""
    try:
        import threadpoolctl
    except ImportError:
        return
    threadpoolctl.threadpool_limits(threads)
