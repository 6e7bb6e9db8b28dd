"""The ablation on the length of the landing step: the quartic's root, ½, and ½ kept safe, on circuits."""

from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Scale
from orthoptim_experiments.harness.methods import RATES, Options, pogo_family
from orthoptim_experiments.problems.circuits.experiment import PAPER_SIZES, POGO, TINY_SIZES, CircuitExperiment
from orthoptim_experiments.problems.circuits.training import CircuitTraining
from orthoptim_experiments.problems.stepsize import claims as judges
from orthoptim_experiments.problems.stepsize.claims import LANDINGS, SMALLEST, swept


class StepSize(CircuitExperiment):
    """See the module."""

    name = "stepsize"
    title = "Length of the landing step"
    about = """
Squared unitary circuits (see `orthoptim run circuits`), trained by POGO without a base optimizer at five learning
rates η, landing with λ from the root of the quartic, with λ = ½ as it is, and with λ = ½ kept safe. POGO with VAdam is
the reference.

A training has diverged when a matrix is farther than 100 from the manifold or is no number any more, or when its loss
is beyond twice that of knowing nothing.
"""
    scales: ClassVar = {
        "tiny": Scale(
            "digits of 8×8 and 2 units, for tests", seeds=1, sizes=TINY_SIZES | {"train_images": 500, "epochs": 2.0}
        ),
        "laptop": Scale(
            "MNIST and 4 units, a minute a method",
            seeds=1,
            sizes=PAPER_SIZES | {"units": 4, "epochs": 2.0, "evaluations": 6},
        ),
        "paper": Scale("as in the paper: 10 units", seeds=1, sizes=PAPER_SIZES),
    }
    default_methods = ("POGO", *(swept(landing, rate) for landing in LANDINGS for rate in RATES))
    claims = (
        Claim(
            f"The root and ½ are indistinguishable at η = {SMALLEST}",
            judges.alike,
            "there is no difference at all (besides training time) between fixing λ or computing the root for the "
            "smallest learning rate",
            "App. D.6",
        ),
        Claim(
            "½ diverges at larger learning rates",
            judges.diverges,
            "every other version not appearing in the plot diverged within the first epoch",
            "App. D.6",
        ),
        Claim(
            "With the root POGO escapes from the manifold at η = 0.025",
            judges.escapes,
            "it directly escapes from the manifold at η = 0.025",
            "App. D.6",
        ),
        Claim(
            "VAdam is better than any learning rate without it",
            judges.best,
            "the version with VAdam obtains the best bpd results",
            "App. D.6",
        ),
        Claim("The safe landing diverges at no learning rate", judges.safe),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`."""
        plain = {swept(landing, rate): {"lr": float(rate), "base": "SGD"} for landing in LANDINGS for rate in RATES}
        return {**pogo_family(POGO), **plain}

    def problem(self, config: Config, method: str, seed: int) -> CircuitTraining:
        """See :meth:`Experiment.problem`."""
        return CircuitTraining(config, seed, draw=False)
