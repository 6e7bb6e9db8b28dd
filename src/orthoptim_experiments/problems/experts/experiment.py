"""A mixture of experts: what it costs to keep every expert orthonormal, and what it does to the model."""

from typing import Any, ClassVar

from orthoptim_experiments.harness.claims import Claim, lower, shorter
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import Options
from orthoptim_experiments.harness.panels import Panel
from orthoptim_experiments.problems.experts.claims import feasible
from orthoptim_experiments.problems.experts.training import ExpertTraining

_TINY = {
    "length": 4,
    "embedding": 4,
    "experts": 4,
    "p": 8,
    "choices": 2,
    "batch": 16,
    "test_windows": 16,
    "steps": 6,
    "stride": 3,
    "rest_lr": 3e-3,
}
_LAPTOP = {
    **_TINY,
    "length": 16,
    "embedding": 16,
    "experts": 16,
    "p": 64,
    "batch": 128,
    "test_windows": 2048,
    "steps": 400,
    "stride": 50,
}


class ExpertExperiment(Experiment):
    """See the module."""

    name = "experts"
    title = "Mixture of experts"
    about = """
A mixture of experts predicts the next symbol of the text of Python's help() from the 16 before it: 16 experts
of 64×256, up and down, 32 matrices in two parameters. The router, embedding and head are trained with Adam
by all contenders alike; the experts by the contender, which keeps their rows orthonormal, or by Adam, which does not.
"""
    scales: ClassVar = {
        "tiny": Scale("4 experts of 8×16, for tests", seeds=2, sizes=_TINY),
        "laptop": Scale("16 experts of 64×256, a minute", seeds=5, sizes=_LAPTOP),
        "paper": Scale("256 experts of 64×256", seeds=5, sizes={**_LAPTOP, "experts": 256, "batch": 2048}),
    }
    dtypes = ("float32",)
    default_methods = ("POGO", "RGD", "StiefelMuon", "Adam")
    claims = (
        Claim("Orthonormal experts predict better than free ones", lower("perplexity", ["POGO"], "Adam")),
        Claim("POGO keeps every expert within 1e-5 of orthonormal", feasible),
        Claim("POGO trains in less time than RGD", shorter("POGO", "RGD")),
    )
    panels = (
        Panel("step", "perplexity", start=False),
        Panel("time", "perplexity", start=False),
        Panel("step", "max_distance"),
    )
    columns = ("perplexity", "max_distance", "optimizer_time", "processor_time")

    def methods(self, config: Config) -> dict[str, Options]:
        """The best of four rates each on seed 1000: see docs/guides/experts.md; torch-orthogonal has that of Adam."""
        return {
            "POGO": {"lr": 0.5},
            "RGD": {"lr": 3.0},
            "StiefelMuon": {"lr": 0.015},
            "Adam": {"lr": 3e-3},
            "torch-orthogonal": {"lr": 3e-3},
        }

    def problem(self, config: Config, method: str, seed: int) -> ExpertTraining:
        """See :meth:`Experiment.problem`."""
        return ExpertTraining(config, seed)

    def sweep_sizes(self, config: Config) -> dict[str, Any]:
        """Learning rates are chosen by text that is neither trained on nor reported."""
        return {"validation": True}
