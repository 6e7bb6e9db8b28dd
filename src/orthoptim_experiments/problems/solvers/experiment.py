"""Deterministic solvers for single matrices: bases of POGO against pymanopt."""

from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import Options
from orthoptim_experiments.harness.panels import Panel
from orthoptim_experiments.problems.solvers.claims import ahead
from orthoptim_experiments.problems.solvers.contenders import OURS, PEERS, installed
from orthoptim_experiments.problems.solvers.problem import PROBLEMS, Solving
from orthoptim_experiments.problems.stepwise import limit_threads, searches

_GAP = "projected_gap"


def _sizes(p: int, n: int, p_sparse: int, side: int, budget: int) -> Config:
    """Of the dense problems, of the sparse one, and the most steps, of which a hundredth lies between records."""
    dense, sparse = {"p": p, "n": n}, {"p_sparse": p_sparse, "side": side}
    return {**dense, **sparse, "budget": budget, "stride": max(20, budget // 100), "tolerance": 1e-10}


class Solvers(Experiment):
    """See the module."""

    name = "solvers"
    title = "Deterministic solvers"
    about = """
Problems in one matrix with exact gradients, in float64, to a gap |f − f*|/|f*| of 1e-10: online PCA with a spectrum of
condition number 1000, orthogonal Procrustes, and a Brockett function of a sparse matrix (the p least eigenvectors, in
order, of the Laplacian of a grid with a random potential). POGO with each base for deterministic problems, with and
without a line search, against pymanopt's ConjugateGradient and TrustRegions with their defaults.

A step is an iteration. Evaluations are points at which the function or its gradient was computed, and Hessian products,
which trust regions need; each takes about one product with the data.
"""
    scales: ClassVar = {
        "tiny": Scale("12×16, for tests", seeds=2, sizes=_sizes(12, 16, 3, 4, 400)),
        "laptop": Scale("PCA 75×100, Procrustes 100×100, Brockett 8×400", seeds=3, sizes=_sizes(75, 100, 8, 20, 4000)),
        "paper": Scale(
            "PCA 375×500, Procrustes 500×500, Brockett 16×2500", seeds=3, sizes=_sizes(375, 500, 16, 50, 10000)
        ),
    }
    variants: ClassVar = {
        "pca": "online PCA, A = QDQᵀ",
        "procrustes": "orthogonal Procrustes",
        "brockett": "a Brockett function of a sparse matrix",
    }
    dtypes = ("float64",)
    default_methods = (*OURS, *installed(PEERS))
    claims = (
        Claim("POGO with BB reaches 1e-10 sooner than pymanopt's solvers", ahead("POGO-BB", PEERS, _GAP)),
        Claim("POGO with LBFGS reaches 1e-10 sooner than pymanopt's solvers", ahead("POGO-LBFGS", PEERS, _GAP)),
        Claim(
            "POGO with LBFGS needs fewer evaluations than POGO with BB or CG, and than pymanopt's solvers",
            ahead("POGO-LBFGS", ("POGO-BB", "POGO-CG-search", *PEERS), _GAP, "evaluations"),
        ),
        Claim(
            "POGO with CG and a search needs fewer evaluations than pymanopt's CG",
            ahead("POGO-CG-search", ("pymanopt-CG",), _GAP, "evaluations"),
        ),
    )
    panels = (Panel("step", _GAP), Panel("evaluations", _GAP), Panel("processor_time", _GAP))
    columns = (_GAP, "evaluations", "distance", "processor_time")

    def methods(self, config: Config) -> dict[str, Options]:
        """No contender has a rate to tune."""
        return {name: {} for name in (*OURS, *PEERS)}

    def prepare(self, config: Config) -> None:
        """Let numpy use as many threads as torch."""
        limit_threads(config["threads"])

    def problem(self, config: Config, method: str, seed: int) -> Solving:
        """See :meth:`Experiment.problem`."""
        kind = PROBLEMS[config["variant"]]
        problem = kind({**config, "variant": "paper"}, seed, config["dtype"])  # type: ignore[arg-type]
        return Solving(problem, searches(method))
