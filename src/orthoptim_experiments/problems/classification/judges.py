"""What claims about networks are judged by."""

import math
from collections.abc import Callable
from statistics import mean

from orthoptim_experiments.harness.claims import Verdict, column, missing, seconds, verdict
from orthoptim_experiments.harness.records import Run

Judge = Callable[[Run], Verdict]


def as_accurate(reference: str, margin: float) -> Judge:
    """Whether POGO's last accuracy is at most so much below that of a method, or of the ``"best"`` of all."""

    def judge(run: Run) -> Verdict:
        if absent := missing(run, "POGO", *(() if reference == "best" else (reference,))):
            return absent
        last = {method: _last(run, method, "accuracy") for method in _measured(run)}
        target = max(last.values()) if reference == "best" else last[reference]
        shown = ", ".join(f"{method} {value:.1%}" for method, value in sorted(last.items(), key=lambda item: -item[1]))
        return verdict(last["POGO"] >= target - margin, f"last accuracy: {shown}")

    return judge


def feasible(method: str, limit: float) -> Judge:
    """Whether no matrix was ever farther than a limit, as far as was recorded."""

    def judge(run: Run) -> Verdict:
        if absent := missing(run, method):
            return absent
        worst, mean_worst = (max(_all(run, method, name)) for name in ("max_distance", "distance"))
        return verdict(worst <= limit, f"largest distance of {method}: {worst:.1e}; largest mean {mean_worst:.1e}")

    return judge


def as_near(method: str, other: str, factor: float) -> Judge:
    """Whether the largest mean distance of a method is at most that of another, times a factor."""

    def judge(run: Run) -> Verdict:
        if absent := missing(run, method, other):
            return absent
        worst = {name: max(_all(run, name, "distance")) for name in (method, other)}
        shown = ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
        return verdict(worst[method] <= factor * worst[other], f"largest mean distance: {shown}")

    return judge


def faster(method: str, *others: str) -> Judge:
    """Whether a method takes less training time than each of the others."""

    def judge(run: Run) -> Verdict:
        if absent := missing(run, method, *others):
            return absent
        times = {name: _last(run, name, "time") for name in (method, *others)}
        shown = ", ".join(f"{name} {seconds(value)}" for name, value in sorted(times.items(), key=lambda item: item[1]))
        return verdict(times[method] < min(times[name] for name in others), f"training time: {shown}")

    return judge


def cheap(method: str, share: float) -> Judge:
    """Whether the optimizers' part of the training time is below a share."""

    def judge(run: Run) -> Verdict:
        if absent := missing(run, method):
            return absent
        part = mean(_all(run, method, "optimizer_share"))
        return verdict(part < share, f"optimizer steps of {method}: {part:.1%} of the training time")

    return judge


def _measured(run: Run) -> list[str]:
    """The methods that have records."""
    return [method for method in dict.fromkeys(trial.method for trial in run.trials) if column(run, method, "accuracy")]


def _last(run: Run, method: str, name: str) -> float:
    """The mean over seeds of the last value of a column."""
    return mean(values[-1] for values in column(run, method, name) if values)


def _all(run: Run, method: str, name: str) -> list[float]:
    """Every measured value of a column."""
    return [value for values in column(run, method, name) for value in values if not math.isnan(value)]
