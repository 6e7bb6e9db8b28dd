"""The ablation on the length of the landing step: the quartic's root, ½, and ½ kept safe, on circuits."""

import math
from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim, Verdict, missing, statuses, verdict
from orthoptim_experiments.harness.experiment import Config, Scale
from orthoptim_experiments.harness.methods import RATES, Options
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.problems.circuits.experiment import PAPER_SIZES, POGO, TINY_SIZES, CircuitExperiment
from orthoptim_experiments.problems.circuits.training import CircuitTraining

LANDINGS = ("POGO-root", "POGO-half", "POGO-safe")
SMALLEST, *LARGER = RATES
ALIKE = 1e-3
"""Bits per dimension: the gain by which early stopping tells a better model."""


def swept(landing: str, rate: str) -> str:
    """The name of POGO with a landing and a learning rate."""
    return f"{landing} η={rate}"


def _alike(run: Run) -> Verdict:
    root, half = swept("POGO-root", SMALLEST), swept("POGO-half", SMALLEST)
    if absent := missing(run, root, half):
        return absent
    differences = [
        abs(one - other)
        for trial in run.of(root)
        if (twin := run.trial(half, trial.seed)) is not None
        for one, other in zip(trial.records["bpd"], twin.records["bpd"], strict=True)
    ]
    largest = max(math.inf if math.isnan(value) else value for value in differences)
    return verdict(largest <= ALIKE, f"largest difference at any step: {largest:.1e} bpd")


def _diverges(run: Run) -> Verdict:
    if absent := missing(run, *(swept(landing, rate) for landing in ("POGO-half", "POGO-safe") for rate in LARGER)):
        return absent
    lost = {landing: [rate for rate in RATES if _diverged(run, landing, rate)] for landing in LANDINGS}
    shown = "; ".join(f"{landing}: {', '.join(rates) or 'at none'}" for landing, rates in lost.items())
    return verdict(bool(lost["POGO-half"]) and not lost["POGO-safe"], f"diverged: {shown}")


def _diverged(run: Run, landing: str, rate: str) -> bool:
    return "diverged" in statuses(run, swept(landing, rate))


def _best(run: Run) -> Verdict:
    names = [swept(landing, rate) for landing in ("POGO-root", "POGO-half") for rate in RATES]
    if absent := missing(run, "POGO", *names):
        return absent
    last = {
        name: min(trial.records["bpd"][-1] for trial in run.of(name))
        for name in ("POGO", *names)
        if "diverged" not in statuses(run, name)
    }
    first, second = sorted(last, key=lambda name: last[name])[:2]
    return verdict(first == "POGO", f"least bpd: {first} {last[first]:.3f}, then {second} {last[second]:.3f}")


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
            "digits of 8×8 and 2 units, for tests",
            seeds=1,
            sizes=TINY_SIZES | {"train_images": 500, "epochs": 2.0},
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
        Claim(f"The root and ½ are indistinguishable at η = {SMALLEST}", _alike),
        Claim("½ diverges at larger learning rates, where safe does not", _diverges, "paper, orthoptim"),
        Claim("VAdam is better than any learning rate without it", _best),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`."""
        plain = {swept(landing, rate): {"lr": float(rate), "base": "SGD"} for landing in LANDINGS for rate in RATES}
        return {"POGO": POGO, **plain}

    def problem(self, config: Config, method: str, seed: int) -> CircuitTraining:
        """See :meth:`Experiment.problem`."""
        return CircuitTraining(config, seed, draw=False)
