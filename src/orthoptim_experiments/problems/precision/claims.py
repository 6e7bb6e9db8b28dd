"""What the paper says about precision."""

from statistics import median

from orthoptim_experiments.harness.claims import Verdict, column, figures, growth, requires, verdict
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.records import Run

COMPARED = ("POGO", "RGD", "RSDM", "Landing")


def _in(*precisions: str) -> list[str]:
    return [f"{method}-{bits}" for method in COMPARED for bits in precisions]


@requires("RSDM-fp32", "RSDM-fp64", "RGD-fp32", "RGD-fp64")
def rsdm(run: Run) -> Verdict:
    """Whether RSDM drifts in 32 bits, and converges to the manifold in 64."""
    last = {method: _last(run, method) for method in ("RSDM-fp32", "RSDM-fp64", "RGD-fp32", "RGD-fp64")}
    least = min(growth(run, "RSDM-fp32"))
    holds = last["RSDM-fp32"] > 10 * last["RGD-fp32"] and least > 2 and last["RSDM-fp64"] < 1e-10
    return verdict(holds, f"last distance: {figures(last)}; RSDM-fp32 grew {least:.1f}-fold over the last nine tenths")


@requires(*_in("fp16", "fp32"))
def coarser(run: Run) -> Verdict:
    """Whether 16-bit products raise all distances tenfold at least."""
    factors = {method: _last(run, f"{method}-fp16") / _last(run, f"{method}-fp32") for method in COMPARED}
    measured = f"last distance with 16-bit products, in units of that in 32: {figures(factors, '.0f')}"
    return verdict(min(factors.values()) >= 10, measured)


@requires(*_in("fp32", "fp64"))
def slower(run: Run) -> Verdict:
    """Whether steps in 64 bits take 1.5 times as long as in 32 at least."""
    factors = {method: _pace(run, f"{method}-fp64") / _pace(run, f"{method}-fp32") for method in COMPARED}
    measured = f"time of a step in 64 bits, in units of that in 32: {figures(factors, '.1f')}"
    return verdict(min(factors.values()) >= 1.5, measured)


@requires(*_in("fp16", "fp32"))
def faster(run: Run) -> Verdict:
    """Whether 16-bit products speed up POGO and Landing more than RGD and RSDM."""
    if run.config["device"] == "cpu":
        return Verdict("not measured", "16-bit products are emulated here; run on a GPU")
    factors = {method: _pace(run, f"{method}-fp32") / _pace(run, f"{method}-fp16") for method in COMPARED}
    holds = min(factors["POGO"], factors["Landing"]) > max(factors["RGD"], factors["RSDM"])
    return verdict(holds, f"speed-up by 16-bit products: {figures(factors, '.1f')}")


def _last(run: Run, method: str) -> float:
    return max(distances[-1] for distances in column(run, method, "distance"))


def _pace(run: Run, method: str) -> float:
    """Seconds per step, of the clock that counts."""
    pairs = zip(column(run, method, clock_of(run.config)), column(run, method, "step"), strict=True)
    return median(times[-1] / max(steps[-1], 1) for times, steps in pairs)
