"""Online PCA: the leading p-dimensional subspace of a symmetric matrix."""

from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import PAPER, Options
from orthoptim_experiments.problems.matrix import hyperparameters
from orthoptim_experiments.problems.matrix_claims import artefact, leads, near_rgd
from orthoptim_experiments.problems.pca import claims as judges
from orthoptim_experiments.problems.pca.problem import PCAProblem


class PCA(Experiment):
    """See the module."""

    name = "pca"
    title = "Online PCA"
    about = """
Find the leading p-dimensional subspace of a symmetric n×n matrix: minimise −½ tr(XAXᵀ) over XXᵀ = I. A trial ends when
the gap |f − f*|/|f*| of the nearest orthogonal matrix is below {tolerance}, or after {budget} steps.

The published script builds A = sym(QDQ), which is indefinite; the paper's text describes A = QDQᵀ, of condition number
1000. Learning rates were tuned on the script's, so --variant code is the default.

Beside the paper's six methods: POGO-BB, POGO with each other landing (POGO-safe, -strict, -root, -argmin), and what
users have today where it is installed: pogo-torch, geoopt, geotorch and torch's own parametrization.
"""
    scales: ClassVar = {
        "tiny": Scale(
            "12×16, for tests", seeds=2, sizes={"p": 12, "n": 16, "budget": 200, "stride": 1, "tolerance": 1e-6}
        ),
        "laptop": Scale(
            "225×300, minutes", seeds=3, sizes={"p": 225, "n": 300, "budget": 3000, "stride": 10, "tolerance": 1e-6}
        ),
        "paper": Scale(
            "1500×2000, as in the paper",
            seeds=10,
            sizes={"p": 1500, "n": 2000, "budget": 3000, "stride": 10, "tolerance": 1e-6},
        ),
    }
    variants: ClassVar = {
        "code": "A = sym(QDQ), as published; indefinite",
        "paper": "A = QDQᵀ, as the text says; condition number 1000",
    }
    default_methods = (*PAPER, "POGO-BB")
    claims = (
        Claim(
            "POGO and LandingPC converge first",
            leads(("POGO", "LandingPC"), 1),
            "we see that POGO and LandingPC converge first",
            "§5.1, Online PCA",
        ),
        Claim(
            "Landing, SLPG and RGD descend at a similar rate (steps within a factor of 1.5)",
            judges.similar,
            "with Landing, SLPG and RGD descending at a similar rate",
            "§5.1, Online PCA",
        ),
        Claim(
            "RSDM has the slowest start (the last to reduce its gap tenfold)",
            judges.slow_start,
            "RSDM has the slowest start and then sharply descends",
            "§5.1, Online PCA",
        ),
        Claim(
            "All methods but RSDM land on the manifold; RSDM moves away from it",
            judges.lands,
            "we see every method quickly landing onto the manifold",
            "§5.1, Online PCA",
        ),
        Claim("RSDM's sharp descent is one off the manifold: the gap of its projection is far larger", artefact),
        Claim("POGO and LandingPC converge in the fewest iterations", judges.fewest),
        Claim("POGO stays as near the manifold as RGD all along (within a factor of ten)", near_rgd),
        Claim("POGO with Barzilai–Borwein reaches 1e-6 first of all, at least twice as fast", leads(("POGO-BB",), 2)),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`."""
        pogo = {"lr": 0.25, "base": "SGD", "momentum": 0.3}
        return hyperparameters(config["n"], pogo, rgd=0.15, rsdm=(1.5, 700), landingpc=(10.5, 0.01), slpg=0.125)

    def problem(self, config: Config, method: str, seed: int) -> PCAProblem:
        """See :meth:`Experiment.problem`."""
        return PCAProblem(config, seed, config["dtype"])
