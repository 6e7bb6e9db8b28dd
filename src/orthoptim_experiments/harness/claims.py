"""Claims, stated so that data can confirm or refute them, and the tools of their judges.

A verdict says what a run of this size shows. Where a method of a claim was not run, or diverged or failed, nothing is
measured; where an interval over seeds includes the other answer, the verdict is "undecided".
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.harness.statistics import (
    LOST,
    Arrival,
    Estimate,
    Ratio,
    arrival,
    last,
    lost_words,
    paired_difference,
    paired_ratio,
    time_to,
)

Result = Literal["holds", "fails", "undecided", "not measured"]


class Verdict(NamedTuple):
    """The verdict on a claim, and the measured figures it rests on, in words."""

    verdict: Result
    measured: str


Judge = Callable[[Run], Verdict]
"""Computes a verdict from a run."""


@dataclass(frozen=True)
class Claim:
    """A statement about one experiment.

    Attributes:
        says: the statement on one line.
        judge: computes the verdict from a run.
        quote: the paper's own words, if it is the paper that says so; without them the claim is ours.
        place: where in the paper they stand, or who else says so.
    """

    says: str
    judge: Judge
    quote: str = ""
    place: str = ""

    @property
    def source(self) -> Literal["paper", "ours"]:
        """Who says so."""
        return "paper" if self.quote else "ours"


WORDS: dict[bool, dict[Result, str]] = {
    True: {"holds": "confirmed", "fails": "refuted"},
    False: {"holds": "holds here", "fails": "does not hold here"},
}


def words(verdict: Verdict, paper_scale: bool) -> str:
    """The verdict for people. Below the paper's scale nothing is confirmed or refuted.

    Example:
        >>> words(Verdict("fails", ""), paper_scale=False), words(Verdict("fails", ""), paper_scale=True)
        ('does not hold here', 'refuted')
    """
    return WORDS[paper_scale].get(verdict.verdict, verdict.verdict)


def verdict(holds: bool | None, measured: str) -> Verdict:
    """Whether it holds, with its figures; None is undecided."""
    return Verdict("undecided" if holds is None else "holds" if holds else "fails", measured)


def requires(*methods: str, subject: str = "", lost: bool = False) -> Callable[[Judge], Judge]:
    """Make the verdict "not measured" unless each method has come to an end on every seed that it was run on.

    Args:
        *methods: those that the claim speaks of.
        subject: the one that it praises, by default POGO if it is among them; if that diverges, the claim fails.
        lost: whether the claim is about divergence, and takes trials that diverged.
    """
    methods = tuple(dict.fromkeys(methods))
    subject = subject or ("POGO" if "POGO" in methods else "")

    def decorate(judge: Judge) -> Judge:
        def judge_if_run(run: Run) -> Verdict:
            absent = [m for m in methods if not any(t.status and t.status != "failed" for t in run.of(m))]
            if absent:
                ends = [f"{m} failed" if run.of(m) and any(t.status for t in run.of(m)) else m for m in absent]
                return Verdict("not measured", f"not run: {', '.join(ends)}")
            bad = [trial for m in methods for trial in run.of(m) if trial.status in LOST]
            if bad and not lost:
                told = "; ".join(f"{trial.method}, seed {trial.seed}: {lost_words(trial)}" for trial in bad)
                mine = any(trial.method == subject and trial.status == "diverged" for trial in bad)
                return Verdict("fails" if mine else "not measured", told)
            return judge(run)

        return judge_if_run

    return decorate


def only(key: str, value: Any, judge: Judge) -> Judge:
    """The judge of a claim that is made of one variant or setting alone."""

    def judge_if_so(run: Run) -> Verdict:
        if run.config.get(key) != value:
            return Verdict("not measured", f"said of {key} {value}")
        return judge(run)

    return judge_if_so


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


def target_of(run: Run) -> Target:
    """What the trials of a single-matrix experiment aim at: a gap of the projected iterate."""
    return Target("projected_gap", run.config["tolerance"])


def mean_to(run: Run, method: str, axis: str = "") -> float:
    """Geometric mean over seeds of the time (or the steps) to the target; inf unless all seeds reach it."""
    reached = _arrival_of(run, method, axis)
    return reached.estimate.mean if reached.estimate is not None and reached.all else math.inf


def _arrival_of(run: Run, method: str, axis: str = "") -> Arrival:
    """When a method reaches the target, on the seeds that all methods have ended on: seeds differ more than methods."""
    each = [seeds for name in run.methods if (seeds := {trial.seed for trial in ended(run, name)})]
    common = set.intersection(*each) if each else set()
    trials = [trial for trial in ended(run, method) if trial.seed in common]
    return arrival(trials, target_of(run), axis or clock_of(run.config))


def ended(run: Run, method: str) -> list[Trial]:
    """The trials of a method that have ended."""
    return [trial for trial in run.of(method) if trial.status]


def statuses(run: Run, method: str) -> list[str]:
    """The statuses of the trials of a method that have ended."""
    return [str(trial.status) for trial in ended(run, method)]


def column(run: Run, method: str, name: str) -> list[list[float]]:
    """One column of every trial of a method that has ended."""
    return [trial.records.get(name, []) for trial in ended(run, method)]


def known(run: Run, method: str, name: str) -> list[float]:
    """Every measured value of a column."""
    return [value for values in column(run, method, name) for value in values if not math.isnan(value)]


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


def ranking(run: Run, methods: Iterable[str]) -> str:
    """Times to the target in the order of arrival, for people."""
    parts = []
    for name, time in ascending({method: mean_to(run, method) for method in methods}).items():
        found = _arrival_of(run, name)
        if found.all:
            parts.append(f"{name} {seconds(time)} ({mean_to(run, name, 'step'):.0f} steps)")
        elif found.estimate is None:
            parts.append(f"{name} {seconds(math.inf)}")
        else:
            parts.append(f"{name} {seconds(found.estimate.mean)} on {found.reached} of {found.trials} seeds")
    clock = "processor time" if clock_of(run.config) == "processor_time" else "wall time"
    return f"{clock} to {run.config['tolerance']:.0e}: {', '.join(parts)}"


def ratios_to_target(run: Run, method: str, others: Iterable[str]) -> dict[str, Ratio]:
    """By other method, its time to the target in units of a method's, seed by seed."""
    target, clock = target_of(run), clock_of(run.config)
    return ratios(run, method, others, lambda trial: time_to(trial, target, clock))


def ratios(run: Run, method: str, others: Iterable[str], measure: Callable[[Trial], float]) -> dict[str, Ratio]:
    """By other method, what is measured of it in units of what is measured of a method, seed by seed."""
    clock = clock_of(run.config)
    found = {other: paired_ratio(run.of(other), run.of(method), measure, clock) for other in others}
    return {other: ratio for other, ratio in found.items() if ratio is not None}


def decide(found: Mapping[str, Ratio], factor: float) -> bool | None:
    """Whether every ratio is at least a factor, with its interval; None if one may be or not."""
    answers = [ratio.at_least(factor) for ratio in found.values()]
    return None if not answers else False if False in answers else None if None in answers else True


def ratio_words(found: Mapping[str, Ratio], method: str) -> str:
    """Ratios for people."""
    return f"in units of {method}'s: " + ", ".join(f"{other} {ratio.words}" for other, ratio in found.items())


def last_mean(run: Run, method: str, name: str) -> float:
    """The mean over seeds of the last value of a column."""
    values = [value for trial in ended(run, method) if not math.isnan(value := last(trial, name))]
    return math.fsum(values) / len(values)


def first_by(run: Run, method: str, others: Iterable[str], factor: float = 1.0) -> bool | None:
    """Whether a method reaches the target a factor earlier than each other one, with the interval over seeds."""
    others = list(others)
    if math.isinf(mean_to(run, method)):
        return False if any(math.isfinite(mean_to(run, other)) for other in others) else None
    return decide(ratios_to_target(run, method, others), factor)


def both(*answers: bool | None) -> bool | None:
    """Whether all hold; None if none fails and one is undecided."""
    return False if False in answers else None if None in answers else True


def difference(run: Run, method: str, other: str, name: str) -> Estimate:
    """The last value of a column, method minus other, seed by seed, with its 95 % confidence interval.

    Raises:
        LookupError: if there is no seed that both have ended on.
    """
    found = paired_difference(run.of(method), run.of(other), name, level=0.95)
    if found is None:
        raise LookupError(f"{method} and {other} have ended on no common seed")
    return found


def below_zero(found: Estimate) -> bool | None:
    """Whether an interval lies below zero (True), above it (False), or holds both or is none (None)."""
    return True if found.high < 0 else False if found.low > 0 else None


def difference_words(found: Estimate, digits: int) -> str:
    """A difference for people: the mean, half its interval, and the number of pairs."""
    half = f" ± {found.high - found.mean:.{digits}f}" if math.isfinite(found.high) else ""
    return f"{found.mean:+.{digits}f}{half} ({found.trials} seeds)"


def lower(name: str, methods: Iterable[str], other: str, digits: int = 3) -> Judge:
    """Whether a column ends lower with each method than with another one, seed by seed; a tie is undecided."""
    methods = tuple(methods)

    @requires(*methods, other)
    def judge(run: Run) -> Verdict:
        found = {method: difference(run, method, other, name) for method in methods}
        parts = "; ".join(f"{method} − {other}: {difference_words(each, digits)}" for method, each in found.items())
        return verdict(both(*map(below_zero, found.values())), f"{name.replace('_', ' ')}, {parts}")

    return judge


def shorter(method: str, *others: str) -> Judge:
    """Whether the training of each other method takes longer, with the interval over seeds."""

    @requires(method, *others)
    def judge(run: Run) -> Verdict:
        clock = clock_of(run.config)
        found = ratios(run, method, others, lambda trial: last(trial, clock))
        return verdict(decide(found, 1), f"time of training, {ratio_words(found, method)}")

    return judge


def farthest(run: Run, methods: Iterable[str]) -> dict[str, float]:
    """By method that has ended, the largest distance of a matrix at the end of a trial."""
    return {
        method: max(last(trial, "max_distance") for trial in trials)
        for method in methods
        if (trials := ended(run, method))
    }
