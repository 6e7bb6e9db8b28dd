"""What is claimed about the mixture of experts."""

from orthoptim_experiments.harness.claims import Verdict, farthest, figures, requires, verdict
from orthoptim_experiments.harness.records import Run


@requires("POGO")
def feasible(run: Run) -> Verdict:
    """Whether the largest distance of any expert at the end is at most 1e-5."""
    distances = farthest(run, run.methods)
    return verdict(distances["POGO"] <= 1e-5, f"largest distance: {figures(distances)}")
