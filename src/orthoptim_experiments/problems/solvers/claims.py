"""What is claimed about solvers, by times and evaluations to a target, paired by seed."""

import math
from collections.abc import Sequence

from orthoptim_experiments.harness.claims import Judge, Verdict, decide, figures, ratio_words, ratios, requires, verdict
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import arrival, time_to


def ahead(method: str, others: Sequence[str], target: str, axis: str = "") -> Judge:
    """Whether a method reaches the tolerance earlier than each of the others that reached it.

    Args:
        method: the one that is praised.
        others: those it is compared with.
        target: the column that must fall below the tolerance.
        axis: what is compared; by default the clock that counts.
    """

    @requires(method, *others, subject=method)
    def judge(run: Run) -> Verdict:
        aim, along = Target(target, run.config["tolerance"]), axis or clock_of(run.config)
        found = ratios(run, method, others, lambda trial: time_to(trial, aim, along))
        means = {name: mean(run, name, aim, along) for name in (method, *others)}
        if math.isinf(means[method]):
            return Verdict("fails", f"{method} does not reach {aim.value:.0e}")
        text = f"{along.replace('_', ' ')} to {aim.value:.0e}: {figures(means, '.3g')}; {ratio_words(found, method)}"
        return verdict(decide(found, 1), text)

    return judge


def mean(run: Run, method: str, target: Target, axis: str) -> float:
    """Geometric mean over seeds of what it takes to reach a target; inf unless all do."""
    reached = arrival(run.of(method), target, axis)
    return reached.estimate.mean if reached.estimate is not None and reached.all else math.inf
