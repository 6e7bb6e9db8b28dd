"""Judges of claims about classifiers."""

import math
from statistics import mean

from orthoptim_experiments.harness.claims import Judge, Verdict, ascending, column, figures, requires, seconds, verdict
from orthoptim_experiments.harness.records import Run


def as_accurate(reference: str, margin: float) -> Judge:
    """Whether POGO's last accuracy is at most so much below that of a method, or of the ``"best"`` of all."""

    @requires("POGO", *(() if reference == "best" else (reference,)))
    def judge(run: Run) -> Verdict:
        measured = [method for method in run.methods if column(run, method, "accuracy")]
        last = {method: _last(run, method, "accuracy") for method in measured}
        target = max(last.values()) if reference == "best" else last[reference]
        descending = dict(reversed(ascending(last).items()))
        return verdict(last["POGO"] >= target - margin, f"last accuracy: {figures(descending, '.1%')}")

    return judge


def feasible(method: str, limit: float) -> Judge:
    """Whether no matrix was ever farther than a limit, as far as was recorded."""

    @requires(method)
    def judge(run: Run) -> Verdict:
        worst, mean_worst = (max(_all(run, method, name)) for name in ("max_distance", "distance"))
        return verdict(worst <= limit, f"largest distance of {method}: {worst:.1e}; largest mean {mean_worst:.1e}")

    return judge


def as_near(method: str, other: str, factor: float) -> Judge:
    """Whether the largest mean distance of a method is at most that of another, times a factor."""

    @requires(method, other)
    def judge(run: Run) -> Verdict:
        worst = {name: max(_all(run, name, "distance")) for name in (method, other)}
        return verdict(worst[method] <= factor * worst[other], f"largest mean distance: {figures(worst)}")

    return judge


def faster(method: str, *others: str) -> Judge:
    """Whether a method takes less training time than each of the others."""

    @requires(method, *others)
    def judge(run: Run) -> Verdict:
        times = ascending({name: _last(run, name, "time") for name in (method, *others)})
        parts = ", ".join(f"{name} {seconds(value)}" for name, value in times.items())
        return verdict(times[method] < min(times[name] for name in others), f"training time: {parts}")

    return judge


def cheap(method: str, share: float) -> Judge:
    """Whether the optimizers' part of the training time is below a share."""

    @requires(method)
    def judge(run: Run) -> Verdict:
        part = mean(_all(run, method, "optimizer_share"))
        return verdict(part < share, f"optimizer steps of {method}: {part:.1%} of the training time")

    return judge


def _last(run: Run, method: str, name: str) -> float:
    """The mean over seeds of the last value of a column."""
    return mean(values[-1] for values in column(run, method, name) if values)


def _all(run: Run, method: str, name: str) -> list[float]:
    """Every measured value of a column."""
    return [value for values in column(run, method, name) for value in values if not math.isnan(value)]
