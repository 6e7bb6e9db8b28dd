"""The orthogonal Procrustes problem: the orthogonal matrix that best takes one matrix to another."""

from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.harness.claims import (
    Claim,
    Verdict,
    column,
    growth,
    missing,
    ranking,
    statuses,
    time_to,
    verdict,
)
from orthoptim_experiments.harness.experiment import DTYPES, Config, Experiment, Scale
from orthoptim_experiments.harness.methods import PAPER, Options
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.problems.matrix import MatrixProblem, pogo_variants, start
from orthoptim_experiments.problems.pca.experiment import FULL, bb_first, near_rgd


class Instance(NamedTuple):
    """The data of one seed, in double precision."""

    a: Tensor
    b: Tensor
    optimum: float
    start: Tensor


@lru_cache(maxsize=1)
def instance(n: int, seed: int, dtype: str) -> Instance:
    """Two Gaussian matrices whose entries the dtype can hold, the least value, and a start.

    The optimum is the polar factor of AᵀB (the paper says of AB). No continuous path leads from determinant 1 to −1, so
    the start must have that of the optimum: else every method stops at a gap that tells nothing of it.
    """
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(n, n, dtype=torch.float64, generator=generator).to(DTYPES[dtype]).double() for _ in range(2))
    best = oo.project_(a.mT @ b)
    x = start(n, n, generator)
    if torch.linalg.slogdet(x).sign != torch.linalg.slogdet(best).sign:
        x[0] *= -1
    return Instance(a, b, float((a @ best - b).square().sum()) / (2 * n), x)


class ProcrustesProblem(MatrixProblem):
    """Minimise ‖AX − B‖²/2n."""

    def __init__(self, config: Config, seed: int, dtype: str) -> None:
        data = instance(config["n"], seed, dtype)
        self.exact = data.a.to(config["device"]), data.b.to(config["device"])
        self.a, self.b = (matrix.to(DTYPES[dtype]) for matrix in self.exact)
        self.n: int = config["n"]
        super().__init__(config, data.start.to(self.a), data.optimum)

    def differentiate(self) -> None:
        """See :meth:`MatrixProblem.differentiate`."""
        self.residual = self.a @ self.x.detach() - self.b
        self.x.grad = self.a.mT @ self.residual / self.n

    def value(self) -> float:
        """See :meth:`MatrixProblem.value`."""
        return float(self.residual.double().square().sum()) / (2 * self.n)

    def value_at(self, x: Tensor) -> float:
        """See :meth:`MatrixProblem.value_at`."""
        a, b = self.exact
        return float((a @ x - b).square().sum()) / (2 * self.n)


def hyperparameters(n: int) -> dict[str, Options]:
    """The paper's, tuned at n = 2000 and scaled to n as those of PCA are."""
    pogo = {"lr": 0.5, "base": "SGD", "momentum": 0.1}
    return {
        "POGO": {**pogo, "landing": "half"},
        "RGD": {"lr": 0.5},
        "RSDM": {"lr": 2.0, "r": max(2, round(900 * n / FULL))},
        "Landing": {"lr": 0.5, "base": "SGD", "momentum": 0.1},
        "LandingPC": {"lr": 1.5 * (n / FULL) ** 0.5, "lam": 0.1},
        "SLPG": {"lr": 0.5},
        **pogo_variants(pogo),
    }


# The claims


def _first(run: Run) -> Verdict:
    times = {method: time_to(run, method) for method in PAPER}
    ours = max(times["POGO"], times["SLPG"])
    margin = min(time for method, time in times.items() if method not in ("POGO", "SLPG")) / ours
    measured = f"{ranking(run, times)}; the third takes {margin:.1f} times as long as the second"
    return missing(run, *PAPER) or verdict(margin >= 1.5, measured)


def _exhausts(run: Run) -> Verdict:
    ends = statuses(run, "LandingPC")
    gaps = [c[-1] for c in column(run, "LandingPC", "gap")]
    return missing(run, "LandingPC") or verdict(
        set(ends) == {"budget"}, f"LandingPC ends: {', '.join(ends)}; worst last gap {max(gaps, default=0):.1e}"
    )


def _lands_at_once(run: Run) -> Verdict:
    slow, fast = ("Landing", "LandingPC"), ("POGO", "SLPG")
    if absent := missing(run, *slow, *fast):
        return absent
    steps = {method: max(_landed(run, method)) for method in (*fast, *slow)}
    shown = ", ".join(f"{method} {count:.0f}" for method, count in steps.items())
    holds = 2 * max(steps[m] for m in fast) <= min(steps[m] for m in slow)
    return verdict(holds, f"steps until the distance stays below 1e-3, worst seed: {shown}")


def _landed(run: Run, method: str) -> list[float]:
    """For each seed, the step after which the distance stays below 1e-3."""
    pairs = zip(column(run, method, "step"), column(run, method, "distance"), strict=True)
    return [max([0.0, *(s for s, d in zip(steps, ds, strict=True) if not d < 1e-3)]) for steps, ds in pairs]


def _strays(run: Run) -> Verdict:
    if absent := missing(run, "RSDM"):
        return absent
    last, least = max(c[-1] for c in column(run, "RSDM", "distance")), min(growth(run, "RSDM"))
    return verdict(least > 2, f"last distance {last:.1e}, at least {least:.1f} times that after a tenth of the way")


class Procrustes(Experiment):
    """See the module."""

    name = "procrustes"
    title = "Orthogonal Procrustes"
    about = """
Find the orthogonal n×n matrix that best takes A to B, both Gaussian: minimise ‖AX − B‖²/2n over XXᵀ = I. A trial ends
when the gap |f − f*|/|f*| is below 1e-6, or after 3000 steps. The start lies in the component (sign of the determinant)
of the optimum, the polar factor of AᵀB.

At laptop scale the tolerance is 1e-4. The plane of the two least singular values of AᵀB turns so slowly that 3000 steps
do not suffice; by an estimate its share of the gap falls as n^-2.5, from 2e-5 at n = 400 to
below 1e-6 at the paper's 2000.

Beside the paper's six methods: POGO-BB, POGO with each other landing (POGO-safe, -root, -argmin, -strict), and the
authors' own package pogo-torch where it is installed.
"""
    scales: ClassVar = {
        "tiny": Scale("16×16, for tests", seeds=2, sizes={"n": 16, "budget": 200, "stride": 1, "tolerance": 1e-6}),
        "laptop": Scale("300×300, minutes", seeds=3, sizes={"n": 300, "budget": 3000, "stride": 20, "tolerance": 1e-4}),
        "paper": Scale(
            "2000×2000, as in the paper", seeds=10, sizes={"n": 2000, "budget": 3000, "stride": 20, "tolerance": 1e-6}
        ),
    }
    default_methods = (*PAPER, "POGO-BB")
    claims = (
        Claim("POGO and SLPG converge significantly quicker than the others", _first),
        Claim("LandingPC exhausts all the iterations", _exhausts),
        Claim(
            "POGO and SLPG go to the manifold at once; Landing and LandingPC take considerably longer", _lands_at_once
        ),
        Claim("RSDM consistently strays away from the manifold", _strays),
        Claim("POGO stays as near the manifold as RGD all along (within a factor of ten)", near_rgd),
        Claim(
            "POGO with Barzilai–Borwein reaches the tolerance first of all, at least twice as fast",
            bb_first,
            "orthoptim",
        ),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`."""
        return hyperparameters(config["n"])

    def problem(self, config: Config, method: str, seed: int) -> ProcrustesProblem:
        """See :meth:`Experiment.problem`."""
        return ProcrustesProblem(config, seed, config["dtype"])
