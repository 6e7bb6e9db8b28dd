"""Judges of claims about classifiers."""

import math

from orthoptim_experiments.harness.claims import (
    Judge,
    Verdict,
    ascending,
    column,
    decide,
    ended,
    figures,
    known,
    last_mean,
    ratio_words,
    ratios,
    requires,
    verdict,
)
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.methods import PAPER
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import arrival, last


def as_accurate(reference: str, margin: float) -> Judge:
    """Whether POGO's last accuracy is at most so much below that of a method, or of the ``"best"`` of all."""

    @requires("POGO", *(() if reference == "best" else (reference,)))
    def judge(run: Run) -> Verdict:
        accuracies = {method: last_mean(run, method, "accuracy") for method in run.methods if _sound(run, method)}
        target = max(accuracies.values()) if reference == "best" else accuracies[reference]
        descending = dict(reversed(ascending(accuracies).items()))
        return verdict(accuracies["POGO"] >= target - margin, f"last accuracy: {figures(descending, '.1%')}")

    return judge


def alike(methods: tuple[str, ...], margin: float, *, differ: bool = False) -> Judge:
    """Whether the last accuracies of methods are within a margin; ``differ``: whether the first is that much better."""

    @requires(*methods)
    def judge(run: Run) -> Verdict:
        found = {method: last_mean(run, method, "accuracy") for method in methods}
        spread = max(found.values()) - min(found.values())
        holds = found[methods[0]] - min(found.values()) > margin if differ else spread <= margin
        return verdict(holds, f"last accuracy: {figures(found, '.1%')}")

    return judge


def surpasses(reference: str) -> Judge:
    """Whether all methods of the paper are similar (within five points), and none is below the reference."""

    @requires(*PAPER, reference)
    def judge(run: Run) -> Verdict:
        found = {method: last_mean(run, method, "accuracy") for method in (*PAPER, reference)}
        ours = [found[method] for method in PAPER]
        holds = max(ours) - min(ours) <= 0.05 and min(ours) >= found[reference]
        return verdict(holds, f"last accuracy: {figures(found, '.1%')}")

    return judge


def same_pace(method: str, reference: str, factor: float) -> Judge:
    """Whether a method gets to 95 % of the reference's last accuracy in at most so many times its steps."""

    @requires(method, reference)
    def judge(run: Run) -> Verdict:
        target = Target("accuracy", 0.95 * last_mean(run, reference, "accuracy"), below=False)
        steps = {name: arrival(ended(run, name), target, "step") for name in (method, reference)}
        if steps[method].estimate is None or steps[reference].estimate is None:
            return verdict(False, f"{method} never reaches {target.value:.1%}")
        means = {name: found.estimate.mean for name, found in steps.items() if found.estimate is not None}
        measured = f"steps to {target.value:.1%}: {figures(means, '.0f')}"
        return verdict(steps[method].all and means[method] <= factor * means[reference], measured)

    return judge


def feasible(method: str, limit: float) -> Judge:
    """Whether no matrix was ever farther than a limit, as far as was recorded."""

    @requires(method, subject=method)
    def judge(run: Run) -> Verdict:
        worst, mean_worst = (max(known(run, method, name)) for name in ("max_distance", "distance"))
        return verdict(worst <= limit, f"largest distance of {method}: {worst:.1e}; largest mean {mean_worst:.1e}")

    return judge


def as_near(method: str, other: str, factor: float) -> Judge:
    """Whether the largest mean distance of a method is at most that of another, times a factor."""

    @requires(method, other)
    def judge(run: Run) -> Verdict:
        worst = {name: max(known(run, name, "distance")) for name in (method, other)}
        return verdict(worst[method] <= factor * worst[other], f"largest mean distance: {figures(worst)}")

    return judge


def farther(method: str, other: str, factor: float) -> Judge:
    """Whether a method ends that many times farther from the manifold than another."""

    @requires(method, other, subject="none")
    def judge(run: Run) -> Verdict:
        ends = {name: last_mean(run, name, "distance") for name in (method, other)}
        return verdict(ends[method] >= factor * ends[other], f"last mean distance: {figures(ends)}")

    return judge


@requires("Landing", "LandingPC")
def mirrored(run: Run) -> Verdict:
    """Whether Landing first comes nearer to the manifold and then leaves, and LandingPC the other way round."""
    near, far = column(run, "Landing", "distance"), column(run, "LandingPC", "distance")
    dips = all(min(d) < d[0] / 2 and d[-1] > 2 * min(d) for d in near)
    peaks = all(max(d) > 2 * d[0] and d[-1] < max(d) / 2 for d in far)
    parts = [
        f"{name} {d[0]:.1e} → {extreme(d):.1e} → {d[-1]:.1e}"
        for name, distances, extreme in (("Landing", near, min), ("LandingPC", far, max))
        for d in distances[:1]
    ]
    return verdict(dips and peaks, f"distance at first, at its turn, at last: {', '.join(parts)}")


def slower(method: str, others: tuple[str, ...], factor: float, part: str = "") -> Judge:
    """Whether others take a factor of a method's time for the same training, or of its ``optimizer_time``."""

    @requires(method, *others)
    def judge(run: Run) -> Verdict:
        name = part or clock_of(run.config)
        found = ratios(run, method, others, lambda trial: last(trial, name))
        what = "time in the optimizer" if part else "training time"
        return verdict(decide(found, factor), f"{what}, {ratio_words(found, method)}")

    return judge


def as_fast(methods: tuple[str, ...], other: str, factor: float) -> Judge:
    """Whether another takes a factor of the training time of each of the methods."""

    @requires(*methods, other)
    def judge(run: Run) -> Verdict:
        clock = clock_of(run.config)
        found = {
            name: ratio
            for name in methods
            for ratio in ratios(run, name, [other], lambda trial: last(trial, clock)).values()
        }
        parts = ", ".join(f"{name} {ratio.words}" for name, ratio in found.items())
        return verdict(decide(found, factor), f"{other}'s training time in units of that of: {parts}")

    return judge


def cheap(method: str, share: float) -> Judge:
    """Whether the optimizer's part of the training time is below a share."""

    @requires(method)
    def judge(run: Run) -> Verdict:
        shares = known(run, method, "optimizer_share")
        part = math.fsum(shares) / len(shares)
        return verdict(part < share, f"optimizer steps of {method}: {part:.1%} of the training time")

    return judge


def _sound(run: Run, method: str) -> bool:
    """Whether a method has accuracies, and lost no trial."""
    trials = ended(run, method)
    return bool(trials) and all(trial.status in ("budget", "converged") and len(trial) for trial in trials)
