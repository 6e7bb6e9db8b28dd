"""Solvers of other libraries that run a loop of their own, behind the interface of an optimizer: one step at a time."""

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch


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


def limit_threads(threads: int) -> None:
    """Let numpy, in which other libraries compute, use no more threads than torch; threadpoolctl is scikit-learn's."""
    try:
        import threadpoolctl
    except ImportError:
        return
    threadpoolctl.threadpool_limits(threads)
