"""The results of a run by method: the numbers of the page's table, of the terminal's, and of exports."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orthoptim_experiments.harness.panels import LOG, Target
from orthoptim_experiments.harness.records import Trial
from orthoptim_experiments.harness.statistics import (
    LOST,
    Arrival,
    Estimate,
    Ratio,
    arrival,
    by_method,
    estimate,
    finished,
    last,
    lost_words,
    paired_ratio,
    time_to,
)

REFERENCE = "RGD"
"""The method that speed-ups are against: the textbook's."""


@dataclass(frozen=True)
class Summary:
    """The results of one method.

    Attributes:
        method: Its name.
        trials: All of its trials.
        finals: Of each column asked for, the last value: the mean over trials that ended and were not lost.
        times: The seconds that a trial trained for, by clock. Means of times are geometric: speed-ups are ratios.
        arrival: When its trials reach the target, on the clock that counts; None without a target.
        steps: The same in steps.
        speed_up: Against the reference, seed by seed; None unless all trials reach the target.
        lost: How its lost trials ended, in words, in the place of last values if there are no others.
    """

    method: str
    trials: list[Trial]
    finals: dict[str, Estimate | None]
    times: dict[str, Estimate | None]
    arrival: Arrival | None
    steps: Arrival | None
    speed_up: Ratio | None
    lost: str

    @property
    def rank(self) -> float:
        """The time to the target; inf unless all trials reach it."""
        found = self.arrival
        return found.estimate.mean if found is not None and found.estimate is not None and found.all else math.inf


def summarise(
    trials: Sequence[Trial], columns: Sequence[str], target: Target | None, clock: str, reference: str = REFERENCE
) -> list[Summary]:
    """The summary of each method, in the order in which methods first appear."""
    groups = by_method(trials)
    return [
        _summary(method, group, columns, target, clock, groups.get(reference, [])) for method, group in groups.items()
    ]


def fastest(summaries: Sequence[Summary]) -> str:
    """The method that is first at the target, with all its trials; empty if none is."""
    first = min(summaries, key=lambda summary: summary.rank, default=None)
    return first.method if first is not None and math.isfinite(first.rank) else ""


def _summary(
    method: str, trials: list[Trial], columns: Sequence[str], target: Target | None, clock: str, reference: list[Trial]
) -> Summary:
    sound = finished(trials)
    reached = arrival(trials, target, clock) if target else None
    speed_up = None
    if target is not None and reached is not None and reached.all:
        speed_up = paired_ratio(reference, trials, lambda trial: time_to(trial, target, clock), clock)
    return Summary(
        method=method,
        trials=trials,
        finals={name: estimate((last(trial, name) for trial in sound), log=name in LOG) for name in columns},
        times={name: estimate((last(trial, name) for trial in sound), log=True) for name in ("processor_time", "time")},
        arrival=reached,
        steps=arrival(trials, target, "step") if target else None,
        speed_up=speed_up,
        lost="; ".join(dict.fromkeys(lost_words(trial) for trial in trials if trial.status in LOST)),
    )
