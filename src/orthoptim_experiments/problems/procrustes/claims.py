"""Judges of claims about Procrustes."""

from orthoptim_experiments.harness.claims import Verdict, column, figures, growth, requires, statuses, verdict
from orthoptim_experiments.harness.records import Run


@requires("LandingPC", subject="none")
def exhausts(run: Run) -> Verdict:
    """Whether LandingPC uses up its steps."""
    ends = statuses(run, "LandingPC")
    gap = max((gaps[-1] for gaps in column(run, "LandingPC", "projected_gap")), default=0.0)
    return verdict(set(ends) == {"budget"}, f"LandingPC ends: {', '.join(ends)}; worst last gap {gap:.1e}")


@requires("Landing", "LandingPC", "POGO", "SLPG")
def lands_at_once(run: Run) -> Verdict:
    """Whether POGO and SLPG are on the manifold in half the steps of Landing and LandingPC, or fewer."""
    steps = {method: max(_landed(run, method)) for method in ("POGO", "SLPG", "Landing", "LandingPC")}
    holds = 2 * max(steps["POGO"], steps["SLPG"]) <= min(steps["Landing"], steps["LandingPC"])
    return verdict(holds, f"steps until the distance stays below 1e-3, worst seed: {figures(steps, '.0f')}")


def _landed(run: Run, method: str) -> list[float]:
    """For each seed, the step after which the distance stays below 1e-3."""
    pairs = zip(column(run, method, "step"), column(run, method, "distance"), strict=True)
    return [max([0.0, *(s for s, d in zip(steps, ds, strict=True) if not d < 1e-3)]) for steps, ds in pairs]


@requires("RSDM")
def strays(run: Run) -> Verdict:
    """Whether RSDM moves away from the manifold."""
    final, least = max(distances[-1] for distances in column(run, "RSDM", "distance")), min(growth(run, "RSDM"))
    return verdict(least > 2, f"last distance {final:.1e}, at least {least:.1f} times that after a tenth of the way")
