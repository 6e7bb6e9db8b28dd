"""What is claimed about rotations, judged by differences paired by seed."""

from orthoptim_experiments.harness.claims import Verdict, farthest, figures, requires, verdict
from orthoptim_experiments.harness.records import Run

LEARNERS = ("SGDG", "RGD-cayley", "POGO", "StiefelMuon")


@requires(*LEARNERS)
def feasible(run: Run) -> Verdict:
    """Whether the largest distance is below 1e-4 for all but SGDG, and beyond it there."""
    distances = farthest(run, LEARNERS)
    others = max(value for method, value in distances.items() if method != "SGDG")
    return verdict(distances["SGDG"] > 1e-4 >= others, f"largest distance: {figures(distances)}")
