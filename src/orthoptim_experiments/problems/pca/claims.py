"""What the paper says about PCA."""

from orthoptim_experiments.harness.claims import (
    Verdict,
    ascending,
    column,
    figures,
    growth,
    ranking,
    requires,
    steps_to,
    time_to,
    verdict,
)
from orthoptim_experiments.harness.methods import PAPER
from orthoptim_experiments.harness.records import Run


@requires(*PAPER)
def first(run: Run) -> Verdict:
    """Whether POGO and LandingPC converge first."""
    times = {method: time_to(run, method) for method in PAPER}
    return verdict(set([*ascending(times)][:2]) == {"POGO", "LandingPC"}, ranking(run, times))


@requires(*PAPER)
def fewest(run: Run) -> Verdict:
    """Whether POGO and LandingPC take the fewest steps."""
    steps = ascending({method: steps_to(run, method) for method in PAPER})
    return verdict(set([*steps][:2]) == {"POGO", "LandingPC"}, f"steps: {figures(steps, '.0f')}")


@requires("Landing", "SLPG", "RGD")
def similar(run: Run) -> Verdict:
    """Whether Landing, SLPG and RGD take as many steps, within a factor of 1.5."""
    steps = {method: steps_to(run, method) for method in ("Landing", "SLPG", "RGD")}
    measured = f"steps to a gap of {run.config['tolerance']:.0e}: {figures(steps, '.0f')}"
    return verdict(max(steps.values()) <= 1.5 * min(steps.values()), measured)


@requires("POGO", "RGD", "SLPG", "RSDM")
def last(run: Run) -> Verdict:
    """Whether RSDM is the last of the feasible methods."""
    times = {method: time_to(run, method) for method in ("POGO", "RGD", "SLPG", "RSDM")}
    return verdict([*ascending(times)][-1] == "RSDM", f"the feasible methods, {ranking(run, times)}")


@requires(*PAPER)
def lands(run: Run) -> Verdict:
    """Whether all methods but RSDM come nearer to the manifold, or stay as near."""
    final = {method: max(distances[-1] for distances in column(run, method, "distance")) for method in PAPER}
    grown = {method: growth(run, method) for method in PAPER}
    parts = ", ".join(f"{method} {final[method]:.1e} ({max(grown[method]):.2g})" for method in PAPER)
    others = max(max(factors) for method, factors in grown.items() if method != "RSDM")
    measured = f"last distance, worst seed (and in units of that after a tenth of the way): {parts}"
    return verdict(min(grown["RSDM"]) > 2 >= others, measured)
