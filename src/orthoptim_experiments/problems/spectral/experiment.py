"""StiefelMuon against POGO with VAdam: both normalise their steps, in the spectral and in the Frobenius norm."""

import math
from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim, lower
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import Options
from orthoptim_experiments.harness.panels import Panel
from orthoptim_experiments.problems.decay import Decaying
from orthoptim_experiments.problems.matrix import MatrixProblem
from orthoptim_experiments.problems.pca.problem import PCAProblem
from orthoptim_experiments.problems.procrustes.problem import ProcrustesProblem


class _Decaying(Decaying, MatrixProblem):
    def advance(self) -> None:
        self.decay()
        super().advance()

    def evaluate(self) -> dict[str, float]:
        """That of the problem, and the logarithm of the gap, whose differences are compared."""
        values = super().evaluate()
        return {**values, "log_gap": math.log10(max(values["projected_gap"], 1e-16))}


class _DecayingPCA(_Decaying, PCAProblem):
    pass


class _DecayingProcrustes(_Decaying, ProcrustesProblem):
    pass


_METHODS = ("StiefelMuon", "POGO-VAdam")


class Spectral(Experiment):
    """See the module."""

    name = "spectral"
    title = "Spectral steps"
    about = """
Online PCA and orthogonal Procrustes (see `orthoptim run pca` and `run procrustes`) in {budget} steps, with a learning
rate that falls linearly to zero, by StiefelMuon and by POGO with VAdam. Both had five rates on a seed that is not
reported.
"""
    scales: ClassVar = {
        "tiny": Scale(
            "12×16, for tests", seeds=2, sizes={"p": 12, "n": 16, "budget": 40, "stride": 20, "tolerance": 1e-12}
        ),
        "laptop": Scale(
            "PCA 90×120, Procrustes 120×120",
            seeds=3,
            sizes={"p": 90, "n": 120, "budget": 300, "stride": 100, "tolerance": 1e-12},
        ),
        "paper": Scale(
            "PCA 1500×2000, Procrustes 2000×2000",
            seeds=3,
            sizes={"p": 1500, "n": 2000, "budget": 300, "stride": 100, "tolerance": 1e-12},
        ),
    }
    variants: ClassVar = {"pca": "online PCA, A = QDQᵀ", "procrustes": "orthogonal Procrustes"}
    default_methods = _METHODS
    claims = (
        Claim(
            "StiefelMuon ends nearer to the optimum than POGO with VAdam",
            lower("log_gap", ["StiefelMuon"], "POGO-VAdam", 2),
        ),
    )
    panels = (Panel("step", "projected_gap"), Panel("time", "projected_gap"), Panel("step", "distance"))
    columns = ("projected_gap", "distance", "processor_time")

    def methods(self, config: Config) -> dict[str, Options]:
        """The best of five rates on seed 1000, see docs/methods/stiefelmuon.md."""
        return {"StiefelMuon": {"lr": 0.03}, "POGO-VAdam": {"lr": 30.0 if config["variant"] == "pca" else 3.0}}

    def problem(self, config: Config, method: str, seed: int) -> MatrixProblem:
        """See :meth:`Experiment.problem`."""
        if config["variant"] == "pca":
            return _DecayingPCA({**config, "variant": "paper"}, seed, config["dtype"])
        return _DecayingProcrustes(config, seed, config["dtype"])
