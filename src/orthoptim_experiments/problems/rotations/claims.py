"""What is claimed about rotations, judged by differences paired by seed."""

import math
import statistics

from orthoptim_experiments.harness.claims import Verdict, figures, requires, verdict
from orthoptim_experiments.harness.records import Run

_T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's 97.5 % quantile, by the number of pairs."""


def last(run: Run, method: str, column: str = "perplexity") -> dict[int, float]:
    """The last value of a column, by seed."""
    return {trial.seed: trial.records[column][-1] for trial in run.of(method) if trial.status}


def paired(run: Run, method: str, other: str, column: str = "perplexity") -> tuple[float, float, int]:
    """The mean of method minus other over common seeds, half its 95 % confidence interval, and their number.

    A single pair has an interval of any length.
    """
    one, two = last(run, method, column), last(run, other, column)
    differences = [one[seed] - two[seed] for seed in sorted(one.keys() & two.keys())]
    count = len(differences)
    half = math.inf if count < 2 else _T95.get(count, 2.228) * statistics.stdev(differences) / count**0.5
    return statistics.mean(differences), half, count


def is_below(run: Run, method: str, other: str, column: str = "perplexity") -> bool | None:
    """Whether the interval of method minus other lies below zero (True), above it (False), or holds both (None)."""
    mean, half, _ = paired(run, method, other, column)
    return True if mean + half < 0 else False if mean - half > 0 else None


def difference(run: Run, method: str, other: str, column: str = "perplexity") -> str:
    """The same in words."""
    mean, half, count = paired(run, method, other, column)
    return f"{method} − {other}: {mean:+.3f} ± {half:.3f} ({count} seeds)"


@requires("none", "random")
def random_helps(run: Run) -> Verdict:
    """Whether the interval of random minus none lies below zero."""
    return verdict(is_below(run, "random", "none"), f"perplexity, {difference(run, 'random', 'none')}")


@requires("hadamard", "SGDG", "RGD-cayley", "POGO", "StiefelMuon")
def learning_helps(run: Run) -> Verdict:
    """Whether the interval of every learner minus its start lies below zero."""
    learners = ("SGDG", "RGD-cayley", "POGO", "StiefelMuon")
    each = [is_below(run, method, "hadamard") for method in learners]
    holds = False if False in each else None if None in each else True
    return verdict(holds, "perplexity, " + "; ".join(difference(run, method, "hadamard") for method in learners))


@requires("POGO", "SGDG")
def pogo_against_sgdg(run: Run) -> Verdict:
    """Whether the interval of POGO minus SGDG lies below zero; a tie is undecided."""
    return verdict(is_below(run, "POGO", "SGDG"), f"perplexity, {difference(run, 'POGO', 'SGDG')}")


@requires("SGDG", "RGD-cayley", "POGO", "StiefelMuon")
def feasible(run: Run) -> Verdict:
    """Whether the largest distance is below 1e-4 for all but SGDG, and beyond it there."""
    learners = ("SGDG", "RGD-cayley", "POGO", "StiefelMuon")
    farthest = {method: max(last(run, method, "max_distance").values()) for method in learners}
    others = max(value for method, value in farthest.items() if method != "SGDG")
    return verdict(farthest["SGDG"] > 1e-4 >= others, f"largest distance: {figures(farthest)}")
