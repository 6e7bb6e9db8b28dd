"""What is claimed about rotations, judged by differences paired by seed."""

import statistics

from orthoptim_experiments.harness.claims import Verdict, figures, requires, verdict
from orthoptim_experiments.harness.records import Run

_T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's 97.5 % quantile, by the number of pairs."""


def last(run: Run, method: str, column: str = "perplexity") -> dict[int, float]:
    """The last value of a column, by seed."""
    return {trial.seed: trial.records[column][-1] for trial in run.of(method) if trial.status}


def paired(run: Run, method: str, other: str, column: str = "perplexity") -> tuple[float, float, int]:
    """The mean of method minus other over common seeds, half its 95 % confidence interval, and their number."""
    one, two = last(run, method, column), last(run, other, column)
    differences = [one[seed] - two[seed] for seed in sorted(one.keys() & two.keys())]
    count = len(differences)
    if count < 2:
        raise ValueError("one pair of seeds has no interval")
    half = _T95.get(count, 2.228) * statistics.stdev(differences) / count**0.5
    return statistics.mean(differences), half, count


def difference(run: Run, method: str, other: str) -> str:
    """The same in words."""
    mean, half, count = paired(run, method, other)
    return f"{method} − {other}: {mean:+.3f} ± {half:.3f} ({count} seeds)"


@requires("none", "random")
def random_helps(run: Run) -> Verdict:
    """Whether the interval of random minus none lies below zero."""
    mean, half, _ = paired(run, "random", "none")
    return verdict(mean + half < 0, f"perplexity, {difference(run, 'random', 'none')}")


@requires("hadamard", "SGDG", "RGD-cayley", "POGO", "StiefelMuon")
def learning_helps(run: Run) -> Verdict:
    """Whether the interval of every learner minus its start lies below zero."""
    learners = ("SGDG", "RGD-cayley", "POGO", "StiefelMuon")
    holds = all(sum(paired(run, method, "hadamard")[:2]) < 0 for method in learners)
    return verdict(holds, "perplexity, " + "; ".join(difference(run, method, "hadamard") for method in learners))


@requires("POGO", "SGDG")
def pogo_against_sgdg(run: Run) -> Verdict:
    """Whether the interval of POGO minus SGDG does not lie above zero."""
    mean, half, _ = paired(run, "POGO", "SGDG")
    return verdict(mean - half <= 0, f"perplexity, {difference(run, 'POGO', 'SGDG')}")


@requires("SGDG", "RGD-cayley", "POGO", "StiefelMuon")
def feasible(run: Run) -> Verdict:
    """Whether the largest distance is below 1e-4 for all but SGDG, and beyond it there."""
    learners = ("SGDG", "RGD-cayley", "POGO", "StiefelMuon")
    farthest = {method: max(last(run, method, "max_distance").values()) for method in learners}
    others = max(value for method, value in farthest.items() if method != "SGDG")
    return verdict(farthest["SGDG"] > 1e-4 >= others, f"largest distance: {figures(farthest)}")
