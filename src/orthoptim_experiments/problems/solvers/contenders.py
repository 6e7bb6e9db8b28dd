"""The contenders that only this experiment and ICA know: registered when it is imported."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import orthoptim as oo
from orthoptim_experiments.harness.methods import METHODS, Dash, Method
from orthoptim_experiments.problems.solvers.problem import Solving, hessian
from orthoptim_experiments.problems.stepwise import ForeignSolver


class Pymanopt(ForeignSolver):
    """A solver of pymanopt on its Stiefel manifold, of transposed matrices, with its own defaults.

    Args:
        params: the matrix.
        solver: ``"ConjugateGradient"`` or ``"TrustRegions"``.
    """

    def __init__(self, params: Any, solver: str) -> None:
        super().__init__(params)
        self.solver = solver

    def solve(self, problem: Solving, pause: Callable[[], None]) -> None:
        """See :meth:`ForeignSolver.solve`."""
        import numpy as np
        import pymanopt
        from pymanopt import optimizers
        from pymanopt.function import numpy as function
        from pymanopt.manifolds import Stiefel
        from torch import from_numpy

        x = problem.problem.x
        manifold = Stiefel(x.shape[1], x.shape[0])
        # trust regions go back to the last point where they reject one
        known: deque[tuple[Any, float, Any]] = deque(maxlen=2)
        shown: Any = None

        def evaluate(point: Any) -> tuple[float, Any]:
            """F and its gradient, computed once for a point."""
            for former, value, slope in known:
                if np.array_equal(point, former):
                    return value, slope
            x.detach().copy_(from_numpy(point.T))
            value = problem.closure()
            assert x.grad is not None
            known.append((point.copy(), value, x.grad.numpy().T.copy()))
            return known[-1][1:]

        def cost(point: Any) -> float:
            return evaluate(point)[0]

        def gradient(point: Any) -> Any:
            nonlocal shown
            slope = evaluate(point)[1]
            if shown is None or not np.array_equal(point, shown):  # Hessian products ask for it, too
                shown = point.copy()
                pause()
            return slope

        def hessian_product(point: Any, vector: Any) -> Any:
            problem.evaluations += 1
            return hessian(problem.problem, from_numpy(vector.T)).numpy().T

        limits = {"max_iterations": 10**9, "max_time": 1e9, "max_cost_evaluations": 10**9, "min_gradient_norm": 1e-15}
        solver = getattr(optimizers, self.solver)(verbosity=0, min_step_size=1e-20, **limits)
        wrap = function(manifold)
        task = pymanopt.Problem(
            manifold, wrap(cost), euclidean_gradient=wrap(gradient), euclidean_hessian=wrap(hessian_product)
        )
        solver.run(task, initial_point=x.detach().numpy().T.copy())


def _ours(name: str, summary: str, colour: str, dash: Dash, base: str) -> Method:
    return Method(name, summary, oo.POGO, colour, dash, fixed={"base": base, "landing": "strict"})


_METHODS = (
    _ours("POGO-BB-search", "POGO with BB and a non-monotone search", "#882255", "dash", "BB"),
    _ours("POGO-CG", "POGO with conjugate gradients", "#009E73", "solid", "CG"),
    _ours("POGO-CG-search", "POGO with conjugate gradients and a search", "#009E73", "dash", "CG"),
    _ours("POGO-LBFGS", "POGO with limited-memory BFGS", "#0072B2", "solid", "LBFGS"),
    _ours("POGO-LBFGS-search", "POGO with limited-memory BFGS and a search", "#0072B2", "dash", "LBFGS"),
    Method(
        "pymanopt-CG",
        "pymanopt's ConjugateGradient (peer)",
        Pymanopt,
        "#888888",
        "dashdot",
        fixed={"solver": "ConjugateGradient"},
        peer="pymanopt",
    ),
    Method(
        "pymanopt-TR",
        "pymanopt's TrustRegions (peer)",
        Pymanopt,
        "#000000",
        "dot",
        fixed={"solver": "TrustRegions"},
        peer="pymanopt",
    ),
)
METHODS |= {method.name: method for method in _METHODS}

OURS = ("POGO-BB", "POGO-BB-search", "POGO-CG", "POGO-CG-search", "POGO-LBFGS", "POGO-LBFGS-search")
PEERS = ("pymanopt-CG", "pymanopt-TR")


def installed(names: Sequence[str]) -> tuple[str, ...]:
    """Those of the methods that can be used here."""
    return tuple(name for name in names if METHODS[name].installed)
