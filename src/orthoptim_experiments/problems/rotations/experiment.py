"""Rotations for quantization: which optimizer finds the rotations that four bits hurt least."""

from typing import Any, ClassVar

from orthoptim_experiments.harness.claims import Claim, lower
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import Options
from orthoptim_experiments.harness.panels import Panel
from orthoptim_experiments.problems.rotations import contenders  # noqa: F401  (registers its methods)
from orthoptim_experiments.problems.rotations.claims import LEARNERS, feasible
from orthoptim_experiments.problems.rotations.training import FIXED, RotationTraining, model_of

LEARNED = ("SGDG", "RGD-cayley", "POGO", "POGO-SGD", "StiefelMuon")

_TINY = {
    "width": 16,
    "layers": 1,
    "heads": 2,
    "hidden": 16,
    "length": 16,
    "train_steps": 20,
    "train_batch": 4,
    "steps": 4,
    "batch": 2,
    "stride": 2,
    "bits": 4,
    "test_windows": 8,
}

_LAPTOP = {
    "width": 128,
    "layers": 3,
    "heads": 4,
    "hidden": 256,
    "length": 64,
    "train_steps": 400,
    "train_batch": 16,
    "steps": 100,
    "batch": 4,
    "stride": 50,
    "bits": 4,
    "test_windows": 64,
}


class RotationExperiment(Experiment):
    """See the module."""

    name = "rotations"
    title = "Rotations for quantization"
    about = """
A small transformer with RMSNorm is trained on the text of Python's help(). Its weights and activations are then rounded
to 4 bits (weights for each output, activations for each token, between ± the largest entry), with its residual stream
rotated by R₁ and the values of each head by R₂. Rotations change nothing but what rounding does. They are learned for
100 steps on calibration text, starting from random Hadamard matrices; perplexity is that of test text.

Contenders that learn nothing: none (no rotation), random (random orthogonal matrices) and hadamard (where the others
start). SGDG is the optimizer that such pipelines use, with the defects of the programs that are passed around.
"""
    scales: ClassVar = {
        "tiny": Scale("a layer of width 16, for tests", seeds=2, sizes=_TINY),
        "laptop": Scale("half a million parameters, minutes", seeds=5, sizes=_LAPTOP),
        "paper": Scale(
            "2.0 million parameters",
            seeds=5,
            sizes={**_LAPTOP, "width": 256, "hidden": 512},
        ),
    }
    dtypes = ("float32",)
    default_methods = (*FIXED, *LEARNED)
    claims = (
        Claim("A random rotation is better than none", lower("perplexity", ["random"], "none")),
        Claim("Learned rotations are better than those they start from", lower("perplexity", LEARNERS, "hadamard")),
        Claim("POGO finds rotations as good as SGDG's, or better", lower("perplexity", ["POGO"], "SGDG")),
        Claim("Of the learners only SGDG leaves the manifold by more than 1e-4", feasible),
    )
    panels = (
        Panel("method", "perplexity", label="perplexity in 4 bits"),
        Panel("step", "perplexity", label="perplexity in 4 bits"),
        Panel("step", "max_distance"),
    )
    columns = ("perplexity", "full_precision", "quantization_error", "max_distance", "processor_time")

    def methods(self, config: Config) -> dict[str, Options]:
        """The best of three rates each at the scale paper, on text that is not reported: docs/guides/rotations.md."""
        return {
            **{name: {} for name in FIXED},
            "SGDG": {"lr": 5.0},
            "RGD-cayley": {"lr": 5.0},
            "POGO": {"lr": 1.5},
            "POGO-SGD": {"lr": 0.05, "momentum": 0.9},
            "StiefelMuon": {"lr": 5e-4},
        }

    def problem(self, config: Config, method: str, seed: int) -> RotationTraining:
        """See :meth:`Experiment.problem`."""
        return RotationTraining(config, method, seed)

    def sweep_sizes(self, config: Config) -> dict[str, Any]:
        """Learning rates are chosen by text that is neither learned from nor reported."""
        return {"validation": True}

    def prepare(self, config: Config) -> None:
        """Train the model, or read it."""
        model_of(config)
