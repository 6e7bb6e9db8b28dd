"""What claims about circuits are judged by."""

import math
from collections.abc import Callable, Iterator
from statistics import mean

from orthoptim_experiments.harness.claims import Verdict, column, missing, seconds, verdict
from orthoptim_experiments.harness.records import Run, Trial

Judge = Callable[[Run], Verdict]

PUBLISHED = {4: 1.300, 6: 1.243, 8: 1.217, 10: 1.203}
"""Test bits per dimension on MNIST, by the number of units."""


def better_at_equal_time(method: str, *others: str) -> Judge:
    """Whether a method's best validation bits per dimension are lowest when the first of a pair of trainings has ended.

    The best so far are those of the model that early stopping keeps.
    """

    def judge(run: Run) -> Verdict:
        if absent := missing(run, method, *others):
            return absent
        shown, holds = [], True
        for other in others:
            pairs = list(_pairs(run, method, other))
            ends = [min(one.records["time"][-1], two.records["time"][-1]) for one, two in pairs]
            own = mean(_best_bpd_by(one, end) for (one, _), end in zip(pairs, ends, strict=True))
            its = mean(_best_bpd_by(two, end) for (_, two), end in zip(pairs, ends, strict=True))
            holds &= own < its
            shown.append(f"within {seconds(mean(ends))} {method} {own:.3f}, {other} {its:.3f}")
        return verdict(holds, f"bits per dimension: {'; '.join(shown)}")

    return judge


def normalised(method: str, limit: float) -> Judge:
    """Whether log Z is never farther than a limit from 0."""

    def judge(run: Run) -> Verdict:
        if absent := missing(run, method):
            return absent
        largest = max(_nan_is_worst(abs(value)) for values in column(run, method, "log_z") for value in values)
        return verdict(largest <= limit, f"largest |log Z| of {method}: {largest:.1e}")

    return judge


def as_good_and_faster(method: str, other: str, factor: float) -> Judge:
    """Whether a method gets to the other's last validation bits per dimension in its time over a factor."""

    def judge(run: Run) -> Verdict:
        if absent := missing(run, method, other):
            return absent
        speed_ups, shown = [], []
        for one, two in _pairs(run, method, other):
            target, end = two.records["bpd"][-1], two.records["time"][-1]
            pairs = zip(one.records["time"], one.records["bpd"], strict=True)
            reached = next((time for time, bpd in pairs if bpd <= target), math.inf)
            speed_ups.append(end / reached)
            shown.append(f"{target:.3f}: {method} {seconds(reached)}, {other} {seconds(end)}")
        return verdict(min(speed_ups) >= factor, f"time to {'; to '.join(shown)}")

    return judge


def as_published(method: str, margin: float) -> Judge:
    """Whether test bits per dimension after training to convergence are those published for this number of units."""

    def judge(run: Run) -> Verdict:
        if absent := missing(run, method):
            return absent
        units = run.config["units"]
        if run.config["dataset"] != "mnist" or units not in PUBLISHED:
            known = ", ".join(map(str, PUBLISHED))
            return Verdict("not measured", f"published for MNIST and {known} units")
        trials = [trial for trial in run.of(method) if trial.status and "test_bpd" in trial.records]
        if not trials:
            return Verdict("not measured", f"published {PUBLISHED[units]:.3f}; no training came to its end")
        reached = mean(trial.records["test_bpd"][-1] for trial in trials)
        epochs = max(trial.records["epoch"][-1] for trial in trials)
        shown = f"test: {reached:.3f} after {epochs:.0f} epochs; published {PUBLISHED[units]:.3f}"
        if any(trial.status != "converged" for trial in trials):
            return Verdict("not measured", f"{shown}; not trained to convergence")
        return verdict(reached <= PUBLISHED[units] + margin, shown)

    return judge


def _pairs(run: Run, method: str, other: str) -> Iterator[tuple[Trial, Trial]]:
    """Finished trials of two methods on the same seed."""
    for one in run.of(method):
        two = run.trial(other, one.seed)
        if one.status and two is not None and two.status and len(one) and len(two):
            yield one, two


def _best_bpd_by(trial: Trial, time: float) -> float:
    """The least that was measured by a time."""
    records = zip(trial.records["time"], trial.records["bpd"], strict=True)
    return min(_nan_is_worst(bpd) for at, bpd in records if at <= time)


def _nan_is_worst(value: float) -> float:
    return math.inf if math.isnan(value) else value
