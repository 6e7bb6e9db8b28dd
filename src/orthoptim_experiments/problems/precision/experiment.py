"""The ablation on precision: online PCA with 16-bit products, in 32 and in 64 bits."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch

from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import LANDINGS, PAPER, PRECISIONS, Options
from orthoptim_experiments.problems.pca.experiment import PCA
from orthoptim_experiments.problems.pca.problem import PCAProblem
from orthoptim_experiments.problems.precision import claims as judges
from orthoptim_experiments.problems.precision.claims import COMPARED
from orthoptim_experiments.problems.precision.products import half_products

OURS = (*PAPER, *LANDINGS, "POGO-BB")
"""The methods that run in each precision: a peer has its own products."""


class HalfProductsPCA(PCAProblem):
    """PCA whose value is not taken from the coarse products of the step."""

    def value(self) -> float:
        """See :meth:`MatrixProblem.value`."""
        return self.value_at(self.x.detach().double())


class Precision(Experiment):
    """See the module."""

    name = "precision"
    title = "Precision of the arithmetic"
    about = """
Online PCA (see `orthoptim run pca`), with the methods of the paper's ablation in three kinds of arithmetic: -fp16, with
16-bit factors in every product of matrices and all else in 32 bits; -fp32; -fp64. Evaluation is in full precision.

On a GPU the 16-bit products are those of the hardware. On a CPU they are emulated: as exact, and slower instead of
faster, so that their times mean nothing.
"""
    scales: ClassVar = {
        "tiny": Scale(
            "12×16, for tests", seeds=2, sizes={"p": 12, "n": 16, "budget": 60, "stride": 1, "tolerance": 1e-6}
        ),
        "laptop": Scale(
            "150×200, minutes", seeds=3, sizes={"p": 150, "n": 200, "budget": 600, "stride": 10, "tolerance": 1e-6}
        ),
        "paper": PCA.scales["paper"],
    }
    variants = PCA.variants
    dtypes = ("by method",)
    default_methods = tuple(f"{name}-{bits}" for name in COMPARED for bits in PRECISIONS)
    claims = (
        Claim(
            "RSDM drifts in 32 bits, and converges to the manifold in 64 as all methods do",
            judges.rsdm,
            "all considered methods converge to the manifold for the highest precision, including RSDM",
            "App. D.5",
        ),
        Claim(
            "16-bit products raise all distances by orders of magnitude",
            judges.coarser,
            "with all distances increasing order several orders of magnitude",
            "App. D.5",
        ),
        Claim(
            "All methods are significantly slower in 64 bits",
            judges.slower,
            "all methods significantly increased training times",
            "App. D.5",
        ),
        Claim(
            "POGO and Landing benefit the most from faster products",
            judges.faster,
            "POGO and Landing benefit the most from speed-ups in matrix multiplication",
            "App. D.5",
        ),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`."""
        options = {name: value for name, value in PCA().methods(config).items() if name in OURS}
        return {f"{name}-{bits}": value for name, value in options.items() for bits in PRECISIONS}

    def problem(self, config: Config, method: str, seed: int) -> PCAProblem:
        """See :meth:`Experiment.problem`."""
        if method.endswith("-fp16"):
            return HalfProductsPCA(config, seed, "float32")
        return PCAProblem(config, seed, "float64" if method.endswith("-fp64") else "float32")

    def arithmetic(self, config: Config, method: str) -> AbstractContextManager[Any]:
        """See :meth:`Experiment.arithmetic`."""
        return half_products(torch.device(config["device"])) if method.endswith("-fp16") else nullcontext()
