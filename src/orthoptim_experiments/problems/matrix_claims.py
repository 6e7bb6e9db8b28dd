"""Claims about both PCA and Procrustes."""

from orthoptim_experiments.harness.claims import Verdict, column, ranking, requires, time_to, verdict
from orthoptim_experiments.harness.methods import PAPER
from orthoptim_experiments.harness.records import Run


@requires("POGO", "RGD")
def near_rgd(run: Run) -> Verdict:
    """Whether POGO is as near the manifold as RGD, within a factor of ten, all along."""
    limit = 10 * max(max(distances) for distances in column(run, "RGD", "distance"))
    worst, until = 0.0, 0.0
    for steps, distances in zip(column(run, "POGO", "step"), column(run, "POGO", "distance"), strict=True):
        worst = max(worst, *distances)
        until = max([until, *(step for step, far in zip(steps, distances, strict=True) if far > limit)])
    measured = f"largest distance: POGO {worst:.1e}, RGD {limit / 10:.1e}"
    if worst > limit:
        measured += f"; POGO is within ten times RGD's from step {until + 1:.0f} on"
    return verdict(worst <= limit, measured)


@requires("POGO-BB", *PAPER)
def bb_first(run: Run) -> Verdict:
    """Whether POGO with Barzilai–Borwein is the first of all, twice as fast as the next."""
    times = {method: time_to(run, method) for method in ("POGO-BB", *PAPER)}
    ahead = 2 * times["POGO-BB"] <= min(time for method, time in times.items() if method != "POGO-BB")
    # not by leaving the manifold: the nearest orthogonal matrix must be as good
    projected = max(gaps[-1] for gaps in column(run, "POGO-BB", "projected_gap"))
    measured = f"{ranking(run, times)}; POGO-BB's last projected gap {projected:.1e}"
    return verdict(ahead and projected < 2 * run.config["tolerance"], measured)
