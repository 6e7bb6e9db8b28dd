"""What is claimed about the mixture of experts."""

from orthoptim_experiments.harness.claims import (
    Verdict,
    below_zero,
    decide,
    difference,
    difference_words,
    ended,
    figures,
    ratio_words,
    ratios,
    requires,
    verdict,
)
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import last


@requires("POGO", "Adam")
def better_than_free(run: Run) -> Verdict:
    """Whether the interval of POGO minus Adam lies below zero, paired by seed; a tie is undecided."""
    found = difference(run, "POGO", "Adam", "perplexity")
    return verdict(below_zero(found), f"perplexity, POGO − Adam: {difference_words(found, 3)}")


@requires("POGO")
def feasible(run: Run) -> Verdict:
    """Whether the largest distance of any expert at the end is at most 1e-5."""
    farthest = {
        method: max(last(trial, "max_distance") for trial in trials)
        for method in run.methods
        if (trials := ended(run, method))
    }
    return verdict(farthest["POGO"] <= 1e-5, f"largest distance: {figures(farthest)}")


@requires("POGO", "RGD")
def faster_than_rgd(run: Run) -> Verdict:
    """Whether RGD takes more processor time than POGO for as many steps, with the interval over seeds."""
    clock = clock_of(run.config)
    found = ratios(run, "POGO", ["RGD"], lambda trial: last(trial, clock))
    return verdict(decide(found, 1.0), f"time of training, {ratio_words(found, 'POGO')}")
