"""The ablation on precision: online PCA with 16-bit products, in 32 and in 64 bits."""

from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any, ClassVar

import torch

from orthoptim_experiments.harness.claims import Claim, Verdict, column, growth, missing, verdict
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import PRECISIONS, Options
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.problems.pca.experiment import PCA, PCAProblem, hyperparameters
from orthoptim_experiments.problems.precision.products import half_products

COMPARED = ("POGO", "RGD", "RSDM", "Landing")


def _last(run: Run, method: str) -> float:
    return max(c[-1] for c in column(run, method, "distance"))


def _rsdm(run: Run) -> Verdict:
    needed = ("RSDM-fp32", "RSDM-fp64", "RGD-fp32", "RGD-fp64")
    if absent := missing(run, *needed):
        return absent
    last = {method: _last(run, method) for method in needed}
    least = min(growth(run, "RSDM-fp32"))
    holds = last["RSDM-fp32"] > 10 * last["RGD-fp32"] and least > 2 and last["RSDM-fp64"] < 1e-10
    shown = ", ".join(f"{method} {value:.1e}" for method, value in last.items())
    return verdict(holds, f"last distance: {shown}; RSDM-fp32 grew {least:.1f}-fold over the last nine tenths")


def _coarser(run: Run) -> Verdict:
    needed = [f"{method}-{bits}" for method in COMPARED for bits in ("fp16", "fp32")]
    if absent := missing(run, *needed):
        return absent
    factors = {method: _last(run, f"{method}-fp16") / _last(run, f"{method}-fp32") for method in COMPARED}
    shown = ", ".join(f"{method} {value:.0f}" for method, value in factors.items())
    return verdict(min(factors.values()) >= 10, f"last distance with 16-bit products, in units of that in 32: {shown}")


def _slower(run: Run) -> Verdict:
    needed = [f"{method}-{bits}" for method in COMPARED for bits in ("fp32", "fp64")]
    if absent := missing(run, *needed):
        return absent
    factors = {method: _pace(run, f"{method}-fp64") / _pace(run, f"{method}-fp32") for method in COMPARED}
    shown = ", ".join(f"{method} {value:.1f}" for method, value in factors.items())
    return verdict(min(factors.values()) >= 1.5, f"time of a step in 64 bits, in units of that in 32: {shown}")


def _faster(run: Run) -> Verdict:
    needed = [f"{method}-{bits}" for method in COMPARED for bits in ("fp16", "fp32")]
    if absent := missing(run, *needed):
        return absent
    if run.config["device"] == "cpu":
        return Verdict("not measured", "16-bit products are emulated here; run on a GPU")
    factors = {method: _pace(run, f"{method}-fp32") / _pace(run, f"{method}-fp16") for method in COMPARED}
    shown = ", ".join(f"{method} {value:.1f}" for method, value in factors.items())
    others = max(factors["RGD"], factors["RSDM"])
    return verdict(min(factors["POGO"], factors["Landing"]) > others, f"speed-up by 16-bit products: {shown}")


def _pace(run: Run, method: str) -> float:
    """Seconds per step."""
    pairs = zip(column(run, method, "time"), column(run, method, "step"), strict=True)
    return median(times[-1] / max(steps[-1], 1) for times, steps in pairs)


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
        Claim("RSDM drifts in 32 bits, and converges to the manifold in 64 as all methods do", _rsdm),
        Claim("16-bit products raise all distances by orders of magnitude", _coarser),
        Claim("All methods are significantly slower in 64 bits", _slower),
        Claim("POGO and Landing benefit the most from faster products", _faster),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`."""
        options = {name: value for name, value in hyperparameters(config["n"]).items() if name != "pogo-torch"}
        return {f"{name}-{bits}": value for name, value in options.items() for bits in PRECISIONS}

    def problem(self, config: Config, method: str, seed: int) -> PCAProblem:
        """See :meth:`Experiment.problem`."""
        if method.endswith("-fp16"):
            return HalfProductsPCA(config, seed, "float32")
        return PCAProblem(config, seed, "float64" if method.endswith("-fp64") else "float32")

    def arithmetic(self, config: Config, method: str) -> AbstractContextManager[Any]:
        """See :meth:`Experiment.arithmetic`."""
        return half_products(torch.device(config["device"])) if method.endswith("-fp16") else nullcontext()
