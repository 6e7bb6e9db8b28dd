"""Means over seeds: trials of one method, recorded at times of their own, become one curve with a confidence band.

The figures and the report page draw what is computed here; nothing else averages. Quantities drawn on a log axis (a
gap, a distance) are interpolated, averaged and given their interval as logarithms: the mean is then the geometric one,
the band is positive, and no single seed dominates it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from orthoptim_experiments.harness.panels import LOG, Target
from orthoptim_experiments.harness.records import Trial

Floats = npt.NDArray[np.float64]

LEVEL = 0.9
"""The level of confidence intervals: that of the paper."""

LEAST = 3
"""The least number of trials with an interval: that of two trials (6.3 standard errors) says nothing."""

POINTS = 400
"""The most points of a curve: twice what a column of a journal, or a screen, resolves."""

ENDED = ("converged", "budget")
"""A trial with this status ran to its end, and keeps its last value; any other was cut off."""

LOST = ("diverged", "failed")
"""A trial with this status counts in no mean, has no last value, and is drawn by itself."""


@dataclass(frozen=True)
class Curve:
    """A mean and its confidence band.

    Attributes:
        x: Ascending, without repetition.
        mean: Over the trials that got as far as x.
        low: Lower end of the confidence interval of the mean; nan where there are fewer trials than `LEAST`.
        high: Its upper end.
        trials: How many trials the mean is over, at each x.
    """

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    trials: npt.NDArray[np.int64]

    @property
    def banded(self) -> bool:
        """Whether there is a band anywhere."""
        return bool(np.isfinite(self.low).any())


@dataclass(frozen=True)
class Estimate:
    """One number from several trials: their mean, and its confidence interval (nan if they are fewer than `LEAST`)."""

    mean: float
    low: float
    high: float
    trials: int


def by_method(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """The trials of each method, methods in the order in which they first appear."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.method, []).append(trial)
    return groups


def counted(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that count in means: those that were not lost."""
    return [trial for trial in trials if trial.status not in LOST]


def finished(trials: Sequence[Trial]) -> list[Trial]:
    """The trials whose last values count as results: ended and not lost; unfinished ones if none has ended."""
    return [trial for trial in counted(trials) if trial.status is not None] or counted(trials)


def lost_words(trial: Trial) -> str:
    """What stands in the place of the last values of a lost trial.

    Example:
        >>> lost_words(Trial("SLPG", 0, status="diverged", records={"step": [0, 12], "time": [0, 1]}))
        'diverged at step 12'
    """
    return f"{trial.status} at step {int(trial.records['step'][-1]) if len(trial) else 0}"


def status_words(trial: Trial) -> str:
    """How a trial ended, for people: a training that used up its budget has completed."""
    if trial.status in LOST:
        return lost_words(trial)
    if trial.status == "budget" and "epoch" in trial.records:
        return "completed"
    return trial.status or "unfinished"


def average(
    trials: Sequence[Trial], x: str, y: str, *, log: bool, start: bool = True, level: float = LEVEL
) -> Curve | None:
    """The mean of column y against column x over trials of one method.

    Trials are interpolated linearly (the logarithm of y is, if `log`) onto one axis. One that converged or used up its
    budget keeps its last value to the end of the longest; one that was cut off counts as far as it goes; one that
    diverged or failed does not count.

    Args:
        trials: Of one method.
        x: Column of the axis: "time" or "step".
        y: Column to average.
        log: Whether y is a quantity for a log axis; values that are not positive then count as missing.
        start: Whether values before the first step count.
        level: Of the confidence interval.

    Returns:
        The curve, or None if no trial that counts has a finite value of y.
    """
    tracks = [
        (trial.status in ENDED, *points)
        for trial in counted(trials)
        if (points := track(trial, x, y, log=log, start=start))
    ]
    if not tracks:
        return None
    axis = common_axis([xs for _, xs, _ in tracks])
    values = np.stack(
        [np.interp(axis, xs, ys, left=np.nan, right=None if ended else np.nan) for ended, xs, ys in tracks]
    )
    mean, low, high, count = _interval(values, level)
    if log:
        with np.errstate(over="ignore", under="ignore"):
            mean, low, high = np.exp(mean), np.exp(low), np.exp(high)
    return Curve(axis, mean, low, high, count)


def track(trial: Trial, x: str, y: str, *, log: bool, start: bool = True) -> tuple[Floats, Floats] | None:
    """The finite points of one trial, x ascending without repetition, y as logarithms if `log`; None if it has none."""
    xs, ys = column(trial, x), column(trial, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        ys = np.log(ys) if log else ys
    known = np.isfinite(xs) & np.isfinite(ys)
    if not start:
        known &= column(trial, "step") > 0
    xs, ys = xs[known], ys[known]
    if not len(xs):
        return None
    xs, last = np.unique(xs[::-1], return_index=True)  # of records at one time, the last
    return xs, ys[::-1][last]


def common_axis(axes: Sequence[Floats]) -> Floats:
    """One ascending axis for several: all their points if these are few, else evenly and geometrically spaced ones.

    Evenly for a linear axis; geometrically so that a log axis shows the start, too.
    """
    points = np.unique(np.concatenate(axes))
    if len(points) <= POINTS:
        return points
    first, last = points[0], points[-1]
    even = np.linspace(first, last, POINTS * 3 // 4)
    positive = points[points > 0]
    geometric = np.geomspace(positive[0], last, POINTS - len(even)) if last > 0 else even[:0]
    axis = np.unique(np.concatenate([even, geometric]))
    inside: Floats = axis[(axis >= first) & (axis <= last)]  # geomspace may overstep its ends by a rounding
    return inside


def estimate(values: Iterable[float], *, log: bool, level: float = LEVEL) -> Estimate | None:
    """The mean (geometric, if `log`) of the finite values, with its confidence interval; None if there are none."""
    known = np.array([value for value in values if np.isfinite(value)], dtype=np.float64)
    if not len(known):
        return None
    if log and (known <= 0).any():
        return Estimate(0.0, np.nan, np.nan, len(known))
    mean, low, high, count = _interval((np.log(known) if log else known)[:, None], level)
    with np.errstate(over="ignore", under="ignore"):
        ends = np.exp([mean[0], low[0], high[0]]) if log else np.array([mean[0], low[0], high[0]])
    return Estimate(float(ends[0]), float(ends[1]), float(ends[2]), int(count[0]))


def last(trial: Trial, name: str) -> float:
    """The last finite value of a column; nan if it has none."""
    values = column(trial, name)
    values = values[np.isfinite(values)]
    return float(values[-1]) if len(values) else np.nan


def time_to(trial: Trial, target: Target, axis: str) -> float:
    """The time (or the step: a column that ascends) at which a trial reaches a target; inf if it never does.

    Between the two records around it the column is taken to be linear (its logarithm, where it is drawn so): methods
    that are measured at other steps are compared fairly. A trial that was lost has reached nothing.
    """
    values, times = column(trial, target.column), column(trial, axis)
    reached = np.flatnonzero(values <= target.value if target.below else values >= target.value)  # false where nan
    if trial.status in LOST or not len(reached):
        return math.inf
    at = int(reached[0])
    if at == 0 or not np.isfinite(values[at - 1]):
        return float(times[at])
    points = np.array([values[at - 1], target.value, values[at]])
    if target.column in LOG and (points > 0).all():
        points = np.log(points)
    share = (points[1] - points[0]) / (points[2] - points[0])
    return float(times[at - 1] + share * (times[at] - times[at - 1]))


class Arrival(NamedTuple):
    """When trials reach a target: the geometric mean over those that do, and how many of how many do."""

    estimate: Estimate | None
    reached: int
    trials: int

    @property
    def all(self) -> bool:
        """Whether every trial reaches it."""
        return 0 < self.reached == self.trials


def arrival(trials: Sequence[Trial], target: Target, axis: str) -> Arrival:
    """When trials reach a target, on the axis of a time or of steps."""
    times = [time for trial in trials if math.isfinite(time := time_to(trial, target, axis))]
    return Arrival(estimate(times, log=True), len(times), len(trials))


class Ratio(NamedTuple):
    """A ratio of two methods, over pairs of trials on the same seed; ``least``: a lower bound."""

    estimate: Estimate
    least: bool

    def at_least(self, factor: float) -> bool | None:
        """Whether it is at least a factor; None if its interval, or a bound below the factor, does not say."""
        low, high = self.estimate.low, self.estimate.high
        if np.isfinite(low) and low < factor <= high:
            return None
        if self.estimate.mean >= factor:
            return True
        return None if self.least else False

    @property
    def words(self) -> str:
        """For people: the mean and its interval."""
        found = self.estimate
        band = f" [{found.low:.3g}, {found.high:.3g}]" if np.isfinite(found.low) else ""
        return f"{'> ' if self.least else ''}{found.mean:.3g}{band}"


def pairs(trials: Sequence[Trial], others: Sequence[Trial]) -> list[tuple[Trial, Trial]]:
    """Trials and others on the same seeds that both ran to their ends: a pair cancels the difficulty of its problem."""
    twins = {other.seed: other for other in others if other.status in ENDED}
    return [(trial, twins[trial.seed]) for trial in trials if trial.seed in twins and trial.status in ENDED]


def paired_difference(
    trials: Sequence[Trial], others: Sequence[Trial], name: str, *, level: float = LEVEL
) -> Estimate | None:
    """The mean of the last value of a column minus that of others on the same seeds; None if there is no pair."""
    return estimate(
        (last(trial, name) - last(other, name) for trial, other in pairs(trials, others)), log=False, level=level
    )


def paired_ratio(
    others: Sequence[Trial], trials: Sequence[Trial], measure: Callable[[Trial], float], clock: str
) -> Ratio | None:
    """What is measured of other trials in units of what is measured of trials on the same seeds: a geometric mean.

    A trial of the others that never gets there counts with the time that it used, a lower bound; None if one of
    ``trials`` never gets there, or there is no pair.
    """
    values, least = [], False
    for trial, other in pairs(trials, others):
        above, below = measure(other), measure(trial)
        if not (math.isfinite(below) and below > 0):
            return None
        if above == math.inf:
            above, least = last(other, clock), True
        values.append(above / below)
    found = estimate(values, log=True)
    return None if found is None or found.mean <= 0 else Ratio(found, least)


def column(trial: Trial, name: str) -> Floats:
    """A column of the records; what is missing is nan."""
    values = trial.records.get(name)
    return np.full(len(trial), np.nan) if values is None else np.array(values, dtype=np.float64)


def _interval(values: Floats, level: float) -> tuple[Floats, Floats, Floats, npt.NDArray[np.int64]]:
    """Means over the first dimension and Student's intervals (seeds are too few for the normal law); nan is missing."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = np.where(known, values, 0).sum(axis=0) / count
        variance = (np.where(known, values - mean, 0) ** 2).sum(axis=0) / (count - 1)
        reach = stdtrit(np.maximum(count - 1, 1), (1 + level) / 2) * np.sqrt(variance / count)
        reach = np.where(count >= LEAST, reach, np.nan)
        return mean, mean - reach, mean + reach, count
