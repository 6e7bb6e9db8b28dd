"""Claims of the paper, stated so that data can confirm or refute them."""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from orthoptim_experiments.harness.records import Run, Trial


class Verdict(NamedTuple):
    """The verdict on a claim, and the measured figures it rests on, in words."""

    verdict: Literal["confirmed", "refuted", "not measured"]
    measured: str


Judge = Callable[[Run], Verdict]
"""Computes a verdict from a run."""


@dataclass(frozen=True)
class Claim:
    """A statement about one experiment.

    Attributes:
        says: the statement, in the words of the one who makes it as far as they fit on a line.
        judge: computes the verdict from a run.
        source: who says so.
    """

    says: str
    judge: Judge
    source: str = "paper"


def verdict(holds: bool, measured: str) -> Verdict:
    """Confirmed or refuted, with its figures."""
    return Verdict("confirmed" if holds else "refuted", measured)


def requires(*methods: str) -> Callable[[Judge], Judge]:
    """Make the verdict of a judge "not measured" unless each method has a finished trial that did not fail."""

    def decorate(judge: Judge) -> Judge:
        def judge_if_run(run: Run) -> Verdict:
            absent = [m for m in methods if not any(t.status and t.status != "failed" for t in run.of(m))]
            return Verdict("not measured", f"not run: {', '.join(absent)}") if absent else judge(run)

        return judge_if_run

    return decorate


def figures(values: Mapping[str, float], spec: str = ".1e") -> str:
    """Values by method, in words.

    Example:
        >>> figures({"POGO": 0.25, "RGD": 0.5}, ".0%")
        'POGO 25%, RGD 50%'
    """
    return ", ".join(f"{method} {value:{spec}}" for method, value in values.items())


def ascending(values: Mapping[str, float]) -> dict[str, float]:
    """The values in ascending order."""
    return dict(sorted(values.items(), key=lambda item: item[1]))


def time_to(run: Run, method: str) -> float:
    """Median over seeds of the training seconds until the gap was first below the tolerance; inf where it never was."""
    return _median([_first_below(trial, run.config["tolerance"], "time") for trial in _finished(run, method)])


def steps_to(run: Run, method: str) -> float:
    """Median over seeds of the steps until the gap was first below the tolerance; inf where it never was."""
    return _median([_first_below(trial, run.config["tolerance"], "step") for trial in _finished(run, method)])


def statuses(run: Run, method: str) -> list[str]:
    """The statuses of the finished trials of a method."""
    return [str(trial.status) for trial in _finished(run, method)]


def column(run: Run, method: str, name: str) -> list[list[float]]:
    """One column of every finished trial of a method."""
    return [trial.records.get(name, []) for trial in _finished(run, method)]


def growth(run: Run, method: str) -> list[float]:
    """For each seed, the last distance in units of that after a tenth of the way: above one, a method moves away."""
    return [distances[-1] / distances[len(distances) // 10] for distances in column(run, method, "distance")]


def seconds(value: float) -> str:
    """A time, formatted.

    Example:
        >>> seconds(1.25), seconds(math.inf)
        ('1.25 s', 'never')
    """
    return f"{value:.3g} s" if math.isfinite(value) else "never"


def ranking(run: Run, times: Mapping[str, float]) -> str:
    """Times to the tolerance in the order of arrival, for people."""
    parts = [
        f"{method} {seconds(time)} ({steps_to(run, method):.0f} steps)" for method, time in ascending(times).items()
    ]
    return f"to a gap of {run.config['tolerance']:.0e}: {', '.join(parts)}".replace(" (inf steps)", "")


def _finished(run: Run, method: str) -> list[Trial]:
    return [trial for trial in run.of(method) if trial.status]


def _first_below(trial: Trial, gap: float, axis: str) -> float:
    pairs = zip(trial.records[axis], trial.records.get("gap", []), strict=False)
    return next((at for at, value in pairs if value < gap), math.inf)


def _median(values: list[float]) -> float:
    return statistics.median_high(values) if values else math.inf
