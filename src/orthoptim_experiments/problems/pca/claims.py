"""Judges of claims about PCA."""

from orthoptim_experiments.harness.claims import (
    Verdict,
    ascending,
    column,
    decide,
    figures,
    growth,
    mean_to,
    ratios,
    requires,
    verdict,
)
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.methods import PAPER
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.harness.statistics import time_to


def _steps(values: dict[str, float]) -> str:
    return figures(values, ".0f").replace(" inf", " never")


@requires(*PAPER)
def fewest(run: Run) -> Verdict:
    """Whether POGO and LandingPC take the fewest steps."""
    steps = ascending({method: mean_to(run, method, "step") for method in PAPER})
    return verdict(set([*steps][:2]) == {"POGO", "LandingPC"}, f"steps: {_steps(steps)}")


@requires("Landing", "SLPG", "RGD")
def similar(run: Run) -> Verdict:
    """Whether Landing, SLPG and RGD take as many steps, within a factor of 1.5."""
    steps = {method: mean_to(run, method, "step") for method in ("Landing", "SLPG", "RGD")}
    measured = f"steps to a gap of {run.config['tolerance']:.0e}: {_steps(steps)}"
    return verdict(max(steps.values()) <= 1.5 * min(steps.values()), measured)


@requires(*PAPER, subject="RSDM")
def slow_start(run: Run) -> Verdict:
    """Whether RSDM is the last to reduce its gap tenfold."""
    clock = clock_of(run.config)

    def tenth(trial: Trial) -> float:
        return time_to(trial, Target("projected_gap", trial.records["projected_gap"][0] / 10), clock)

    found = {
        method: ratio for method in PAPER if method != "RSDM" for ratio in ratios(run, method, ["RSDM"], tenth).values()
    }
    words = ", ".join(f"{method} {ratio.words}" for method, ratio in found.items())
    return verdict(decide(found, 1), f"RSDM's time to a tenth of its first gap, in units of that of: {words}")


@requires(*PAPER)
def lands(run: Run) -> Verdict:
    """Whether all methods but RSDM come nearer to the manifold, or stay as near."""
    final = {method: max(distances[-1] for distances in column(run, method, "distance")) for method in PAPER}
    grown = {method: growth(run, method) for method in PAPER}
    parts = ", ".join(f"{method} {final[method]:.1e} ({max(grown[method]):.2g})" for method in PAPER)
    others = max(max(factors) for method, factors in grown.items() if method != "RSDM")
    measured = f"last distance, worst seed (and in units of that after a tenth of the way): {parts}"
    return verdict(min(grown["RSDM"]) > 2 >= others, measured)
