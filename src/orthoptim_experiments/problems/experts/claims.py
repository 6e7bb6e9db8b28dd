"""What is claimed about the mixture of experts."""

from orthoptim_experiments.harness.claims import Verdict, decide, figures, ratio_words, ratios, requires, verdict
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import last as last_value
from orthoptim_experiments.problems.rotations.claims import difference, is_below, last


@requires("POGO", "Adam")
def better_than_free(run: Run) -> Verdict:
    """Whether the interval of POGO minus Adam lies below zero, paired by seed; a tie is undecided."""
    return verdict(is_below(run, "POGO", "Adam"), f"perplexity, {difference(run, 'POGO', 'Adam')}")


@requires("POGO")
def feasible(run: Run) -> Verdict:
    """Whether the largest distance of any expert at the end is at most 1e-5."""
    farthest = {m: max(last(run, m, "max_distance").values()) for m in run.methods if last(run, m, "max_distance")}
    return verdict(farthest["POGO"] <= 1e-5, f"largest distance: {figures(farthest)}")


@requires("POGO", "RGD")
def faster_than_rgd(run: Run) -> Verdict:
    """Whether RGD takes more processor time than POGO for as many steps, with the interval over seeds."""
    clock = clock_of(run.config)
    found = ratios(run, "POGO", ["RGD"], lambda trial: last_value(trial, clock))
    return verdict(decide(found, 1.0), f"time of training, {ratio_words(found, 'POGO')}")
