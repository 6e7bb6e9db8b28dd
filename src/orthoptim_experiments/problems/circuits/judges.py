"""Judges of claims about circuits."""

import math
from collections.abc import Iterator
from statistics import mean

from orthoptim_experiments.harness.claims import Judge, Verdict, column, known, last_mean, requires, seconds, verdict
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.harness.statistics import time_to

PUBLISHED = {4: 1.300, 6: 1.243, 8: 1.217, 10: 1.203}
"""Test bits per dimension on MNIST, by the number of units."""


def better_at_equal_time(method: str, *others: str) -> Judge:
    """Whether a method's best validation bits per dimension are lowest when the first of a pair of trainings has ended.

    The best so far are those of the model that early stopping keeps.
    """

    @requires(method, *others)
    def judge(run: Run) -> Verdict:
        parts, holds = [], True
        for other in others:
            pairs = list(_pairs(run, method, other))
            clock = clock_of(run.config)
            ends = [min(trial.records[clock][-1] for trial in pair) for pair in pairs]
            bpd, other_bpd = (
                mean(_best_bpd_by(trial, end, clock) for trial, end in zip(trials, ends, strict=True))
                for trials in zip(*pairs, strict=True)
            )
            holds &= bpd < other_bpd
            parts.append(f"within {seconds(mean(ends))} {method} {bpd:.3f}, {other} {other_bpd:.3f}")
        return verdict(holds, f"bits per dimension: {'; '.join(parts)}")

    return judge


def normalised(method: str, limit: float) -> Judge:
    """Whether log Z is never farther than a limit from 0."""

    @requires(method, subject=method)
    def judge(run: Run) -> Verdict:
        largest = max(_nan_is_worst(abs(value)) for values in column(run, method, "log_z") for value in values)
        return verdict(largest <= limit, f"largest |log Z| of {method}: {largest:.1e}")

    return judge


def as_good_and_faster(method: str, other: str, factor: float) -> Judge:
    """Whether a method gets to the other's last validation bits per dimension in its time over a factor."""

    @requires(method, other)
    def judge(run: Run) -> Verdict:
        speed_ups, parts = [], []
        for trial, other_trial in _pairs(run, method, other):
            clock = clock_of(run.config)
            target, end = other_trial.records["bpd"][-1], other_trial.records[clock][-1]
            reached = time_to(trial, Target("bpd", target), clock)
            speed_ups.append(end / reached)
            parts.append(f"{target:.3f}: {method} {seconds(reached)}, {other} {seconds(end)}")
        return verdict(min(speed_ups) >= factor, f"time to {'; to '.join(parts)}")

    return judge


def close(method: str, limit: float) -> Judge:
    """Whether the mean distance is never larger than a limit."""

    @requires(method, subject=method)
    def judge(run: Run) -> Verdict:
        mean_worst, worst = (max(known(run, method, name)) for name in ("distance", "max_distance"))
        return verdict(
            mean_worst <= limit, f"largest mean distance of {method}: {mean_worst:.1e}; of a matrix {worst:.1e}"
        )

    return judge


def stuck(method: str, epsilon: float) -> Judge:
    """Whether a method's farthest matrix is at its bound within an epoch, and comes back slowly."""

    @requires(method)
    def judge(run: Run) -> Verdict:
        early, late = [], []
        for trial in run.of(method):
            far = list(zip(trial.records["epoch"], trial.records["max_distance"], strict=True))
            early.append(max(distance for epoch, distance in far if epoch <= 1))
            late.append(far[-1][1])
        measured = f"largest distance of {method} in the first epoch {max(early):.2g}, at the end {max(late):.2g}"
        return verdict(min(early) >= 0.9 * epsilon and max(late) <= epsilon, measured)

    return judge


def nears(method: str) -> Judge:
    """Whether a method ends at a tenth of its largest mean distance, or nearer."""

    @requires(method)
    def judge(run: Run) -> Verdict:
        farthest, end = max(known(run, method, "distance")), last_mean(run, method, "distance")
        return verdict(end <= farthest / 10, f"mean distance of {method}: at most {farthest:.1e}, at the end {end:.1e}")

    return judge


def worse(method: str, other: str, margin: float) -> Judge:
    """Whether a method's last validation bits per dimension are that much above those of another."""

    @requires(method, other)
    def judge(run: Run) -> Verdict:
        ends = {name: last_mean(run, name, "bpd") for name in (method, other)}
        measured = ", ".join(f"{name} {bpd:.3f}" for name, bpd in ends.items())
        return verdict(ends[method] >= ends[other] + margin, f"last bits per dimension: {measured}")

    return judge


def as_published(method: str, margin: float) -> Judge:
    """Whether test bits per dimension after training to convergence are those published for this number of units."""

    @requires(method)
    def judge(run: Run) -> Verdict:
        units = run.config["units"]
        if run.config["dataset"] != "mnist" or units not in PUBLISHED:
            known = ", ".join(map(str, PUBLISHED))
            return Verdict("not measured", f"published for MNIST and {known} units")
        trials = [trial for trial in run.of(method) if trial.status and "test_bpd" in trial.records]
        if not trials:
            return Verdict("not measured", f"published {PUBLISHED[units]:.3f}; no training came to its end")
        reached = mean(trial.records["test_bpd"][-1] for trial in trials)
        epochs = max(trial.records["epoch"][-1] for trial in trials)
        measured = f"test: {reached:.3f} after {epochs:.0f} epochs; published {PUBLISHED[units]:.3f}"
        if any(trial.status != "converged" for trial in trials):
            return Verdict("not measured", f"{measured}; not trained to convergence")
        return verdict(reached <= PUBLISHED[units] + margin, measured)

    return judge


def _pairs(run: Run, method: str, other: str) -> Iterator[tuple[Trial, Trial]]:
    """Finished trials of two methods on the same seed."""
    for trial in run.of(method):
        twin = run.trial(other, trial.seed)
        if trial.status and twin is not None and twin.status and len(trial) and len(twin):
            yield trial, twin


def _best_bpd_by(trial: Trial, time: float, clock: str) -> float:
    """The least that was measured by a time."""
    records = zip(trial.records[clock], trial.records["bpd"], strict=True)
    return min(_nan_is_worst(bpd) for at, bpd in records if at <= time)


def _nan_is_worst(value: float) -> float:
    return math.inf if math.isnan(value) else value
