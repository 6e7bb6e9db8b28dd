"""Judges of claims about both PCA and Procrustes."""

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
from orthoptim_experiments.harness.methods import PAPER
from orthoptim_experiments.harness.records import Run


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
    """Whether the gap of RSDM's projection is ten times the tolerance where its own is below the tolerance."""
    tolerance = target_of(run).value
    seen = []
    for trial in ended(run, "RSDM"):
        pairs = zip(trial.records["gap"], trial.records["projected_gap"], strict=True)
        seen += [projected for raw, projected in pairs if raw <= tolerance][:1]
    if not seen:
        return Verdict("not measured", f"RSDM's own gap never got below {tolerance:.0e}")
    gaps = ", ".join(f"{projected:.1e}" for projected in seen)
    measured = f"where RSDM's own gap is first below {tolerance:.0e}, that of the nearest orthogonal matrix is {gaps}"
    return verdict(min(seen) > 10 * tolerance, measured)
