"""The results of a run by method: the numbers of the report's table."""

from collections.abc import Sequence
from dataclasses import dataclass

from orthoptim_experiments.harness.panels import LOG, Target
from orthoptim_experiments.harness.records import Trial
from orthoptim_experiments.harness.statistics import ENDED, Estimate, by_method, estimate, finished, last, time_to

REFERENCE = "RGD"
"""The method that speed-ups are against: the textbook's."""


@dataclass(frozen=True)
class SpeedUp:
    """How many times faster than the reference a method is; `least`: at least, as the reference ran out of budget."""

    factor: float
    least: bool


@dataclass(frozen=True)
class Summary:
    """The results of one method.

    Attributes:
        method: Its name.
        trials: All of its trials.
        finals: Of each column asked for, the last value: the mean over trials that ended and were not lost.
        time: The seconds that a trial trained for. Means of times are geometric: speed-ups are ratios.
        reached: How many trials reached the target.
        time_to: Their time to it.
        speed_up: Against the reference; None unless all trials reached the target and the reference's came to an end.
    """

    method: str
    trials: list[Trial]
    finals: dict[str, Estimate | None]
    time: Estimate | None
    reached: int
    time_to: Estimate | None
    speed_up: SpeedUp | None


def summarise(
    trials: Sequence[Trial], columns: Sequence[str], target: Target | None, reference: str = REFERENCE
) -> list[Summary]:
    """The summary of each method, in the order in which methods first appear."""
    groups = by_method(trials)
    return [_summary(method, group, columns, target, groups.get(reference, [])) for method, group in groups.items()]


def _summary(
    method: str, trials: list[Trial], columns: Sequence[str], target: Target | None, reference: list[Trial]
) -> Summary:
    sound = finished(trials)
    times = _times(trials, target)
    return Summary(
        method=method,
        trials=trials,
        finals={name: estimate((last(trial, name) for trial in sound), log=name in LOG) for name in columns},
        time=estimate((last(trial, "time") for trial in sound), log=True),
        reached=len(times),
        time_to=estimate(times, log=True),
        speed_up=_speed_up(trials, reference, target),
    )


def _times(trials: Sequence[Trial], target: Target | None) -> list[float]:
    """The times at which trials reach the target, of those that do."""
    if target is None:
        return []
    times = (time_to(trial, target.column, target.value, below=target.below) for trial in trials)
    return [time for time in times if time == time]


def _speed_up(trials: list[Trial], reference: list[Trial], target: Target | None) -> SpeedUp | None:
    times, reference_times = _times(trials, target), _times(reference, target)
    if not reference or len(times) < len(trials) or not all(trial.status in ENDED for trial in reference):
        return None
    least = len(reference_times) < len(reference)
    slow = estimate((last(trial, "time") for trial in reference) if least else reference_times, log=True)
    fast = estimate(times, log=True)
    if slow is None or fast is None or fast.mean <= 0:
        return None
    return SpeedUp(slow.mean / fast.mean, least)
