"""The orthogonal Procrustes problem: the orthogonal matrix that best takes one matrix to another."""

from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import PAPER, Options
from orthoptim_experiments.problems.matrix import hyperparameters
from orthoptim_experiments.problems.matrix_claims import artefact, leads, near_rgd
from orthoptim_experiments.problems.procrustes import claims as judges
from orthoptim_experiments.problems.procrustes.problem import ProcrustesProblem


class Procrustes(Experiment):
    """See the module."""

    name = "procrustes"
    title = "Orthogonal Procrustes"
    about = """
Find the orthogonal n×n matrix that best takes A to B, both Gaussian: minimise ‖AX − B‖²/2n over XXᵀ = I. A trial ends
when the gap |f − f*|/|f*| of the nearest orthogonal matrix is below {tolerance}, or after {budget} steps. The start
lies in the component (sign of the determinant) of the optimum, the polar factor of AᵀB.

At laptop scale the tolerance is 1e-4. The plane of the two least singular values of AᵀB turns so slowly that 3000 steps
do not suffice; by an estimate its share of the gap falls as n^-2.5, from 2e-5 at n = 400 to
below 1e-6 at the paper's 2000.

Beside the paper's six methods: POGO-BB, POGO with each other landing (POGO-safe, -strict, -root, -argmin), and what
users have today where it is installed: pogo-torch, geoopt, geotorch and torch's own parametrization.
"""
    scales: ClassVar = {
        "tiny": Scale("16×16, for tests", seeds=2, sizes={"n": 16, "budget": 200, "stride": 1, "tolerance": 1e-6}),
        "laptop": Scale("300×300, minutes", seeds=3, sizes={"n": 300, "budget": 3000, "stride": 20, "tolerance": 1e-4}),
        "paper": Scale(
            "2000×2000, as in the paper", seeds=10, sizes={"n": 2000, "budget": 3000, "stride": 20, "tolerance": 1e-6}
        ),
    }
    default_methods = (*PAPER, "POGO-BB")
    claims = (
        Claim(
            "POGO and SLPG converge significantly quicker than the others (1.5 times)",
            leads(("POGO", "SLPG"), 1.5),
            "POGO and SLPG converge significantly quicker",
            "§5.1, Procrustes",
        ),
        Claim(
            "LandingPC exhausts all the iterations",
            judges.exhausts,
            "LandingPC exhausts all the training iterations",
            "§5.1, Procrustes",
        ),
        Claim(
            "POGO and SLPG go to the manifold at once; Landing and LandingPC take considerably longer",
            judges.lands_at_once,
            "POGO and SLPG immediately go to the manifold, whereas both landing methods take considerably longer",
            "§5.1, Procrustes",
        ),
        Claim(
            "RSDM strays away from the manifold",
            judges.strays,
            "RSDM consistently strays away from the manifold",
            "§5.1, Procrustes",
        ),
        Claim("RSDM's descent is one off the manifold: the gap of its projection is far larger", artefact),
        Claim("POGO stays as near the manifold as RGD all along (within a factor of ten)", near_rgd),
        Claim("POGO with Barzilai–Borwein gets there first of all, at least twice as fast", leads(("POGO-BB",), 2)),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`."""
        pogo = {"lr": 0.5, "base": "SGD", "momentum": 0.1}
        return hyperparameters(config["n"], pogo, rgd=0.5, rsdm=(2.0, 900), landingpc=(1.5, 0.1), slpg=0.5)

    def problem(self, config: Config, method: str, seed: int) -> ProcrustesProblem:
        """See :meth:`Experiment.problem`."""
        return ProcrustesProblem(config, seed, config["dtype"])
