"""What the paper says about the length of the landing step."""

import math

from orthoptim_experiments.harness.claims import Verdict, ascending, known, requires, statuses, verdict
from orthoptim_experiments.harness.methods import RATES
from orthoptim_experiments.harness.records import Run

LANDINGS = ("POGO-root", "POGO", "POGO-safe")
SMALLEST, *LARGER = RATES
ALIKE = 1e-3
"""Bits per dimension: the gain by which early stopping tells a better model."""


def swept(landing: str, rate: str) -> str:
    """The name of POGO with a landing and a learning rate."""
    return f"{landing}:base=SGD:lr={rate}"


@requires(swept("POGO-root", SMALLEST), swept("POGO", SMALLEST))
def alike(run: Run) -> Verdict:
    """Whether the root and ½ have the same bits per dimension at the smallest learning rate."""
    differences = [
        abs(root - half)
        for trial in run.of(swept("POGO-root", SMALLEST))
        if (twin := run.trial(swept("POGO", SMALLEST), trial.seed)) is not None
        for root, half in zip(trial.records["bpd"], twin.records["bpd"], strict=True)
    ]
    largest = max(math.inf if math.isnan(value) else value for value in differences)
    return verdict(largest <= ALIKE, f"largest difference at any step: {largest:.1e} bpd")


@requires(*(swept(landing, rate) for landing in ("POGO",) for rate in LARGER), lost=True)
def diverges(run: Run) -> Verdict:
    """Whether ½ diverges at a learning rate."""
    return verdict(bool(_diverged(run, "POGO")), _words(run, "POGO"))


@requires(*(swept("POGO-safe", rate) for rate in LARGER), lost=True)
def safe(run: Run) -> Verdict:
    """Whether the safe landing diverges at none."""
    return verdict(not _diverged(run, "POGO-safe"), _words(run, "POGO-safe"))


@requires(swept("POGO-root", RATES[-1]), lost=True)
def escapes(run: Run) -> Verdict:
    """Whether the root leaves the manifold at the largest learning rate."""
    name = swept("POGO-root", RATES[-1])
    farthest = max(known(run, name, "max_distance"))
    lost = "diverged" in statuses(run, name)
    measured = f"largest distance {farthest:.1e}{', then it diverged' if lost else ''}"
    return verdict(lost or farthest > 0.1, measured)


def _diverged(run: Run, landing: str) -> list[str]:
    return [rate for rate in RATES if "diverged" in statuses(run, swept(landing, rate))]


def _words(run: Run, landing: str) -> str:
    return f"{landing} diverged at {', '.join(_diverged(run, landing)) or 'none'}"


_WITHOUT_VADAM = [swept(landing, rate) for landing in ("POGO-root", "POGO") for rate in RATES]


@requires("POGO", *_WITHOUT_VADAM, lost=True)
def best(run: Run) -> Verdict:
    """Whether POGO with VAdam has the least bits per dimension."""
    last = {
        name: min(trial.records["bpd"][-1] for trial in run.of(name))
        for name in ("POGO", *_WITHOUT_VADAM)
        if "diverged" not in statuses(run, name)
    }
    first, second = [*ascending(last)][:2]
    return verdict(first == "POGO", f"least bpd: {first} {last[first]:.3f}, then {second} {last[second]:.3f}")
