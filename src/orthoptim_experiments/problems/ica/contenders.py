"""The solvers that users of ICA have today: registered when this is imported."""

from collections.abc import Callable
from typing import Any

from orthoptim_experiments.harness.methods import METHODS, Method
from orthoptim_experiments.problems.ica.problem import Unmixing
from orthoptim_experiments.problems.stepwise import ForeignSolver

_FOREVER = 10**9


class FastICA(ForeignSolver):
    """scikit-learn's FastICA, all components at once, on whitened signals."""

    def solve(self, problem: Unmixing, pause: Callable[[], None]) -> None:
        """See :meth:`ForeignSolver.solve`."""
        import numpy as np
        import torch
        from sklearn.decomposition import fastica

        def contrast(y: Any) -> tuple[Any, Any]:
            problem.sources = torch.from_numpy(y)
            problem.evaluations += 1
            pause()
            slope = np.tanh(y, y)  # in place, as its own log-cosh does it
            return slope, np.array([(1 - row**2).mean() for row in slope])

        start = problem.x.detach().numpy()
        fastica(
            problem.z.numpy().T,
            fun=contrast,
            whiten=False,
            w_init=start,
            max_iter=_FOREVER,
            tol=0.0,
            whiten_solver="eigh",
        )


class Picard(ForeignSolver):
    """Picard-O: limited-memory BFGS on the orthogonal group, preconditioned by a Hessian that is made for ICA."""

    def solve(self, problem: Unmixing, pause: Callable[[], None]) -> None:
        """See :meth:`ForeignSolver.solve`."""
        import torch
        from picard import picard
        from picard.densities import Tanh

        class Pausing(Tanh):  # type: ignore[misc]
            def log_lik(self, y: Any) -> Any:
                # asked row by row, n times for a point
                problem.evaluations += 1 / len(problem.z) if y.ndim == 1 else 1
                return super().log_lik(y)

            def score_and_der(self, y: Any) -> Any:
                problem.sources = torch.from_numpy(y)
                pause()
                return super().score_and_der(y)

        picard(
            problem.z.numpy(),
            fun=Pausing(),
            ortho=True,
            extended=False,
            whiten=False,
            centering=False,
            check_fun=False,
            w_init=problem.x.detach().numpy(),
            max_iter=_FOREVER,
            tol=0.0,
        )


_METHODS = (
    Method("FastICA", "scikit-learn's FastICA (peer)", FastICA, "#888888", "dashdot", peer="sklearn"),
    Method("Picard", "Picard-O of python-picard (peer)", Picard, "#000000", "dot", peer="picard"),
)
METHODS |= {method.name: method for method in _METHODS}

PEERS = tuple(method.name for method in _METHODS)
