"""What is claimed about rotations, judged by differences paired by seed."""

from orthoptim_experiments.harness.claims import (
    Verdict,
    below_zero,
    both,
    difference,
    difference_words,
    ended,
    figures,
    requires,
    verdict,
)
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import last

LEARNERS = ("SGDG", "RGD-cayley", "POGO", "StiefelMuon")


def _compared(run: Run, methods: tuple[str, ...], other: str) -> Verdict:
    """Whether the perplexity of each method minus that of another one lies below zero, with its interval."""
    found = {method: difference(run, method, other, "perplexity") for method in methods}
    words = "; ".join(f"{method} − {other}: {difference_words(each, 3)}" for method, each in found.items())
    return verdict(both(*map(below_zero, found.values())), f"perplexity, {words}")


@requires("none", "random")
def random_helps(run: Run) -> Verdict:
    """Whether a random rotation is better than none."""
    return _compared(run, ("random",), "none")


@requires("hadamard", *LEARNERS)
def learning_helps(run: Run) -> Verdict:
    """Whether every learner is better than its start."""
    return _compared(run, LEARNERS, "hadamard")


@requires("POGO", "SGDG")
def pogo_against_sgdg(run: Run) -> Verdict:
    """Whether POGO is better than SGDG; a tie is undecided."""
    return _compared(run, ("POGO",), "SGDG")


@requires(*LEARNERS)
def feasible(run: Run) -> Verdict:
    """Whether the largest distance is below 1e-4 for all but SGDG, and beyond it there."""
    farthest = {method: max(last(trial, "max_distance") for trial in ended(run, method)) for method in LEARNERS}
    others = max(value for method, value in farthest.items() if method != "SGDG")
    return verdict(farthest["SGDG"] > 1e-4 >= others, f"largest distance: {figures(farthest)}")
