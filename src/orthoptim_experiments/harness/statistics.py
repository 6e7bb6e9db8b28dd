"""Means over seeds: trials of one method, recorded at times of their own, become one curve with a confidence band.

The figures and the report page draw what is computed here; nothing else averages. Quantities drawn on a log axis (a
gap, a distance) are interpolated, averaged and given their interval as logarithms: the mean is then the geometric one,
the band is positive, and no single seed dominates it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

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
"""A trial with this status counts in no mean and is drawn separately."""


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
    """The trials that count in means: those that were not lost; all, if all were."""
    return [trial for trial in trials if trial.status not in LOST] or list(trials)


def finished(trials: Sequence[Trial]) -> list[Trial]:
    """The trials whose last values count as results: those that ended and were not lost; all, if there are none."""
    return [trial for trial in counted(trials) if trial.status is not None] or list(trials)


def average(
    trials: Sequence[Trial], x: str, y: str, *, log: bool, start: bool = True, level: float = LEVEL
) -> Curve | None:
    """The mean of column y against column x over trials of one method.

    Trials are interpolated linearly (the logarithm of y is, if `log`) onto one axis. One that converged or used up its
    budget keeps its last value to the end of the longest; one that was cut off counts as far as it goes; one that
    diverged or failed does not count, unless all did.

    Args:
        trials: Of one method.
        x: Column of the axis: "time" or "step".
        y: Column to average.
        log: Whether y is a quantity for a log axis; values that are not positive then count as missing.
        start: Whether values before the first step count.
        level: Of the confidence interval.

    Returns:
        The curve, or None if no trial has a finite value of y.
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


def time_to(trial: Trial, name: str, target: float, *, below: bool = True) -> float:
    """The time of the first record whose column `name` is at most (not `below`: at least) the target, or nan."""
    values = column(trial, name)
    reached = np.flatnonzero(values <= target if below else values >= target)  # false where nan
    return float(column(trial, "time")[reached[0]]) if len(reached) else np.nan


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
