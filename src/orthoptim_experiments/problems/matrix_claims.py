"""Judges of claims about both PCA and Procrustes."""

import math

from orthoptim_experiments.harness.claims import (
    Judge,
    Verdict,
    both,
    column,
    ended,
    first_by,
    known,
    ranking,
    ratio_words,
    ratios_to_target,
    requires,
    target_of,
    verdict,
)
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.methods import PAPER
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.harness.statistics import time_to


@requires("POGO", "RGD")
def near_rgd(run: Run) -> Verdict:
    """Whether POGO is as near the manifold as RGD, within a factor of ten, all along."""
    limit = 10 * max(known(run, "RGD", "distance"))
    worst, until = 0.0, 0.0
    for steps, distances in zip(column(run, "POGO", "step"), column(run, "POGO", "distance"), strict=True):
        worst = max(worst, *distances)
        until = max([until, *(step for step, far in zip(steps, distances, strict=True) if far > limit)])
    measured = f"largest distance: POGO {worst:.1e}, RGD {limit / 10:.1e}"
    if worst > limit:
        measured += f"; POGO is within ten times RGD's from step {until + 1:.0f} on"
    return verdict(worst <= limit, measured)


def leads(leaders: tuple[str, ...], factor: float) -> Judge:
    """Whether each of the leaders is ahead of all others by a factor."""

    @requires(*PAPER, *leaders, subject=leaders[0])
    def judge(run: Run) -> Verdict:
        others = [method for method in PAPER if method not in leaders]
        answers = [first_by(run, leader, others, factor) for leader in leaders]
        found = ratios_to_target(run, leaders[0], others)
        return verdict(both(*answers), f"{ranking(run, (*leaders, *others))}; {ratio_words(found, leaders[0])}")

    return judge


@requires("RSDM")
def artefact(run: Run) -> Verdict:
    """Whether RSDM's own gap gets below the tolerance where that of its projection does not."""
    target, clock = target_of(run), clock_of(run.config)
    raw = Target("gap", target.value)
    seen = [trial for trial in ended(run, "RSDM") if math.isfinite(time_to(trial, raw, clock))]
    if not seen:
        return Verdict("not measured", f"RSDM's own gap never got below {target.value:.0e}")
    projected = max(_at_least_raw(trial) for trial in seen)
    return verdict(
        projected > target.value,
        f"where RSDM's own gap is least, that of the nearest orthogonal matrix is {projected:.1e}",
    )


def _at_least_raw(trial: Trial) -> float:
    gaps = trial.records["gap"]
    return trial.records["projected_gap"][gaps.index(min(gap for gap in gaps if not math.isnan(gap)))]
