"""Unitary recurrence: an optimizer on the manifold against parametrizations of it, and against an LSTM."""

from typing import Any, ClassVar

from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import Options
from orthoptim_experiments.harness.panels import Panel, Target
from orthoptim_experiments.problems.copying import claims as judges
from orthoptim_experiments.problems.copying.contenders import NETWORKS
from orthoptim_experiments.problems.copying.training import RecurrentTraining

_TINY = {
    "delay": 5,
    "units": 16,
    "batch": 4,
    "test_batch": 4,
    "steps": 6,
    "stride": 3,
    "rest_lr": 5e-3,
    "images": "digits8",
}
_LAPTOP = {**_TINY, "delay": 100, "units": 64, "batch": 20, "test_batch": 50, "steps": 400, "stride": 25}


RATES: dict[str, dict[str, float]] = {
    "copying": dict.fromkeys(NETWORKS, 2e-3)
    | {"POGO": 0.2, "POGO-Adam": 4e-3, "POGO-complex": 0.05, "POGO-Adam-complex": 4e-3, "LSTM": 4e-3},
    "digits": dict.fromkeys(NETWORKS, 1.25e-4)
    | {"POGO": 0.0125, "POGO-Adam": 2.5e-4, "cayley-Adam": 5e-4}
    | {"POGO-complex": 0.003, "POGO-Adam-complex": 2.5e-4, "LSTM": 0.016},
}


class CopyingExperiment(Experiment):
    """See the module."""

    name = "copying"
    title = "Unitary recurrence"
    about = """
A recurrent network h ← modReLU(Wh + Vx) with an orthogonal W (or a unitary one, with half as many entries, so as many
real numbers) remembers: copying asks for ten symbols again after a delay T, digits shows the pixels of a digit one by
one in a random order. W is kept orthogonal by its optimizer (POGO) or by a parametrization with Adam, which computes it
anew in every forward pass (once for a batch: parametrize.cached()) and differentiates through that. All else is trained
with Adam, in all networks alike; all begin with the same W. The LSTM has as many units.

A network that remembers nothing has a loss of 10 log 8 / (T + 20); `excess` is the loss in units of that. T is --delay.
"""
    scales: ClassVar = {
        "tiny": Scale("16 units, for tests", seeds=2, sizes=_TINY),
        "laptop": Scale("64 units, a delay of 100, minutes", seeds=3, sizes=_LAPTOP),
        "paper": Scale(
            "128 units, a delay of 1000, permuted MNIST",
            seeds=3,
            sizes={**_LAPTOP, "delay": 1000, "units": 128, "steps": 5000, "images": "mnist"},
        ),
    }
    variants: ClassVar = {"copying": "ten symbols over a long time", "digits": "digits, pixel by pixel"}
    dtypes = ("float32",)
    default_methods = tuple(name for name in NETWORKS if name != "geotorch-Adam")  # a peer, which may be missing
    claims = (
        Claim("POGO learns to copy: half of the loss without memory, real and complex", judges.remembers),
        Claim("The LSTM does not learn to copy in as many steps", judges.lstm_forgets),
        Claim("POGO is there sooner than torch's parametrizations", judges.sooner),
        Claim("As many steps take torch's parametrizations longer", judges.cheaper),
        Claim("An orthogonal network reads digits better than the LSTM", judges.reads_better),
    )
    panels = (
        Panel("step", "loss", log_y=True),
        Panel("time", "loss", log_y=True),
        Panel("step", "accuracy"),
        Panel("step", "distance"),
    )
    columns = ("loss", "accuracy", "distance", "processor_time")

    def methods(self, config: Config) -> dict[str, Options]:
        """The best of three (digits: four) rates each on seed 1000: see docs/guides/recurrent.md."""
        return {name: {"lr": rate} for name, rate in RATES[config.get("variant", "copying")].items()}

    def problem(self, config: Config, method: str, seed: int) -> RecurrentTraining:
        """See :meth:`Experiment.problem`."""
        return RecurrentTraining(config, method, seed)

    def sweep_sizes(self, config: Config) -> dict[str, Any]:
        """Learning rates are chosen by sequences that are not reported."""
        return {"validation": True}

    def target(self, config: Config) -> Target | None:
        """Half the loss of a network that remembers nothing; digits have none."""
        return judges.TARGET if config.get("variant") == "copying" else None
