"""Search for the gradients that drive matrices farthest from the manifold; prints a table.

    python -m tests.fuzz.adversary --trials 100000 --seed 0

A trial is one matrix and one sequence of gradients. Many matrices are stepped at once, each along its own sequence, and
bred: those that came farthest are kept and varied. The learning rates are varied too, from one generation to the next.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import orthoptim as oo
from tests.fuzz.promises import SAFE, STRICT, distances, rounding, wide
from tests.fuzz.record import write_record
from tests.reduced_products import Reduced

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
BOUNDS = {"safe": SAFE, "strict": STRICT}
STEPS = 12
MATRICES = 256  # that are stepped at once
GENERATIONS = 8  # until the search starts anew


class Target(NamedTuple):
    """What is attacked: a method with options; ``reduced`` emulates products of bfloat16."""

    form: str
    shapes: tuple[tuple[int, int], ...]  # the first that is served by the form is taken
    method: type[oo.Orthoptimizer]
    options: dict[str, Any]
    reduced: bool = False

    def build(self, param: torch.nn.Parameter, lr: float, policy: str) -> oo.Orthoptimizer:
        """The optimizer."""
        return self.method([param], lr=lr, landing=policy, **self.options)


_MIXED = {"base": oo.SGD(), "matmul_precision": "mixed"}
TARGETS: dict[str, Target] = {
    "tiny": Target("tiny", ((3, 4), (3, 3)), oo.POGO, {"base": oo.SGD()}),
    "direct-n": Target("direct-n", ((6, 7), (6, 6)), oo.POGO, {"base": oo.SGD()}),
    "direct-p": Target("direct-p", ((4, 12), (3, 24)), oo.POGO, {"base": oo.SGD()}),
    "gram": Target("gram", ((3, 48), (2, 100)), oo.POGO, {"base": oo.VAdam()}),
    "direct-n, mixed": Target("direct-n", ((6, 7), (6, 6)), oo.POGO, _MIXED, reduced=True),
    "direct-p, mixed": Target("direct-p", ((4, 12), (3, 24)), oo.POGO, _MIXED, reduced=True),
    "StiefelMuon, square": Target("skew", ((5, 5),), oo.StiefelMuon, {}),
    "StiefelMuon, wide": Target("gram", ((3, 7),), oo.StiefelMuon, {}),
}

KINDS = 7
_NONE = -math.inf  # the exponent of zero
_RATES = (0.0, 1e-3, 0.1, 0.5, 1.0, 1.0, 1.0, 2.0, 10.0, 1e3, 1e6, 1e12, 1e20)


class Genes(NamedTuple):
    """Sequences of gradients of a population: all of shape (population, steps)."""

    kind: Tensor  # which direction, 0 to KINDS − 1
    tangent: Tensor  # log10 of the size of that direction
    normal: Tensor  # log10 of the multiple of X that is added
    seed: Tensor  # of the random numbers in it
    start: Tensor  # the first is whether the matrix starts at the identity, where sums are exact; else at random

    def pick(self, index: Tensor) -> "Genes":
        """The chosen members."""
        return Genes(*(gene[index] for gene in self))


class Found(NamedTuple):
    """The worst that a search found."""

    target: str
    dtype: torch.dtype
    policy: str
    trials: int
    worst: float
    bound: float
    rounding: float

    @property
    def holds(self) -> bool:
        """Whether the bound holds up to rounding."""
        return self.worst <= self.bound + self.rounding


def search(name: str, dtype: torch.dtype, policy: str, trials: int, seed: int) -> Found:
    """The largest ‖XXᴴ − I‖₂ that the sequences of so many trials caused."""
    generator = torch.Generator().manual_seed(seed)
    target = TARGETS[name]
    p, n = _served(target, dtype, policy)
    best = 0.0
    generations = math.ceil(trials / MATRICES)
    for generation in range(generations):
        if generation % GENERATIONS == 0:
            genes, rates = _random(MATRICES, dtype, generator), _random_rates(generator)
            scores = torch.full((MATRICES,), -math.inf, dtype=torch.float64)
            varied, new_rates = genes, rates
        else:
            varied, new_rates = _bred(genes, scores, dtype, generator), _varied_rates(rates, generator)
        new_scores = _play(varied, new_rates, (p, n), dtype, policy, target, generator)
        best = max(best, float(new_scores.max()))
        if new_scores.max() >= scores.max():
            rates = new_rates
        everything = Genes(*(torch.cat(pair) for pair in zip(genes, varied, strict=True)))
        merged = torch.cat([scores, new_scores])
        order = merged.argsort(descending=True, stable=True)[:MATRICES]
        genes, scores = everything.pick(order), merged[order]
    return Found(name, dtype, policy, generations * MATRICES, best, BOUNDS[policy], rounding(dtype, p, n))


def _served(target: Target, dtype: torch.dtype, policy: str) -> tuple[int, int]:
    for p, n in target.shapes:
        opt = target.build(_points(1, p, n, dtype, torch.Generator().manual_seed(0)), 0.1, policy)
        if opt.plan()[0].form == target.form:
            return p, n
    raise LookupError(f"no shape of {target.method.__name__} is served by the form {target.form!r}")


@contextmanager
def _products(reduced: bool) -> Iterator[None]:
    if not reduced:
        yield
        return
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with Reduced("bfloat16"):
            yield
    finally:
        torch.set_float32_matmul_precision(former)


def _points(count: int, p: int, n: int, dtype: torch.dtype, generator: torch.Generator) -> torch.nn.Parameter:
    value = torch.empty(count, p, n, dtype=dtype)
    return torch.nn.Parameter(oo.orthogonalize_(value, init="random", generator=generator))


def _play(
    genes: Genes,
    rates: list[float],
    shape: tuple[int, int],
    dtype: torch.dtype,
    policy: str,
    target: Target,
    generator: torch.Generator,
) -> Tensor:
    """The largest distance of each member over its sequence."""
    x = _points(MATRICES, *shape, dtype, generator)
    with torch.no_grad():
        x[genes.start[:, 0] == 0] = torch.eye(*shape, dtype=dtype)
    opt = target.build(x, rates[0], policy)
    worst = torch.zeros(MATRICES, dtype=torch.float64)
    for t, lr in enumerate(rates):
        opt.param_groups[0]["lr"] = lr
        x.grad = _gradients(wide(x), genes, t).to(dtype)
        with _products(target.reduced):
            opt.step()
        worst = torch.maximum(worst, distances(x.detach()))
    return worst


def _gradients(x: Tensor, genes: Genes, t: int) -> Tensor:
    """The gradients of step t: a direction of the kind asked for, and a multiple of X."""
    kind = genes.kind[:, t, None, None]
    noise = _noise(x, genes.seed[:, t])
    skew = x @ (x.mH @ noise - noise.mH @ x)
    c = x @ x.mH - torch.eye(x.shape[-2], dtype=x.dtype)
    _, vectors = torch.linalg.eigh(torch.nan_to_num(c, 0.0, 0.0, 0.0))
    first, last = vectors[..., :1], vectors[..., -1:]
    directions = (
        skew,
        _one_direction(x, noise, first),  # along the row that is shortest
        _one_direction(x, noise, last),  # along the longest
        noise,
        (c @ x) * 1e3 + skew * 1e-3,  # away from the manifold, as far as it is off already
        first @ (first.mH @ x) + 1e-3 * skew,
        _one_direction(x, noise, noise[..., :1]),
    )
    direction = torch.stack(directions)[kind.squeeze(), torch.arange(len(x))]
    direction = direction / torch.linalg.matrix_norm(direction).clamp_min(1e-300)[:, None, None]
    tangent, normal = (10 ** gene[:, t, None, None] for gene in (genes.tangent, genes.normal))
    return direction * tangent + x * normal


def _one_direction(x: Tensor, noise: Tensor, row: Tensor) -> Tensor:
    """A tangent matrix of rank two or less that turns one combination of the rows."""
    across = noise[..., :1, :] - (noise[..., :1, :] @ x.mH) @ x
    inside = row.mH @ x
    return row @ across + 1e-3 * (x @ (x.mH @ (row @ inside) - (row @ inside).mH @ x))


def _noise(x: Tensor, seeds: Tensor) -> Tensor:
    """Uniform entries in (−1, 1), a function of the seeds alone."""
    count = x.shape[-2] * x.shape[-1] * (2 if x.is_complex() else 1)
    place = torch.arange(1, count + 1, dtype=torch.float64)
    values = torch.sin(seeds[:, None].double() * 12.9898 + place * 78.233) * 43758.5453
    values = 2 * (values - values.floor()) - 1
    if x.is_complex():
        return torch.view_as_complex(values.reshape(*x.shape, 2).contiguous())
    return values.reshape(x.shape)


def _random(count: int, dtype: torch.dtype, generator: torch.Generator) -> Genes:
    """Sizes of order one for more than half of the steps, else from the whole range of the dtype."""
    shape = (count, STEPS)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)

    reach = _reach(dtype)
    even, without, far = (torch.rand(shape, generator=generator) for _ in range(3))
    small = torch.randn(shape, generator=generator, dtype=torch.float64)
    normal = torch.where(far < 0.3, uniform(18, reach), uniform(-12, 18))
    return Genes(
        torch.randint(KINDS, shape, generator=generator),
        torch.where(even < 0.6, small, uniform(-reach, reach)),
        torch.where(without < 0.5, _NONE, normal),
        torch.randint(1 << 16, shape, generator=generator),
        torch.randint(2, shape, generator=generator),
    )


def _reach(dtype: torch.dtype) -> float:
    """The exponent up to which gradients are tried: sums of their entries must stay in range."""
    return 30.0 if torch.finfo(dtype).bits == 32 else 250.0


def _bred(genes: Genes, scores: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Genes:
    """Three quarters are varied from the best quarter, the rest is new."""
    quarter, reach = MATRICES // 4, _reach(dtype)
    best = scores.argsort(descending=True, stable=True)[:quarter]
    parents = genes.pick(best[torch.randint(quarter, (3 * quarter,), generator=generator)])
    fresh = _random(3 * quarter, dtype, generator)
    rate = 10 ** (-2 * torch.rand(3 * quarter, 1, generator=generator))  # some vary much, some little
    change = [torch.rand(parents.kind.shape, generator=generator) < 0.3 * rate for _ in range(2)]
    nudge = [torch.randn(parents.kind.shape, generator=generator, dtype=torch.float64) * rate for _ in range(2)]
    nudged = torch.where(parents.normal == _NONE, _NONE, (parents.normal + nudge[1]).clamp(-reach, reach))
    varied = Genes(
        torch.where(change[0], fresh.kind, parents.kind),
        (parents.tangent + nudge[0]).clamp(-reach, reach),
        torch.where(change[0], fresh.normal, nudged),
        torch.where(change[1], fresh.seed, parents.seed),
        parents.start,
    )
    new = _random(MATRICES - 3 * quarter, dtype, generator)
    return Genes(*(torch.cat(pair) for pair in zip(varied, new, strict=True)))


def _random_rates(generator: torch.Generator) -> list[float]:
    index = torch.randint(len(_RATES), (STEPS,), generator=generator)
    return [_RATES[i] for i in index.tolist()]


def _varied_rates(rates: list[float], generator: torch.Generator) -> list[float]:
    """Half of the time as they are, else with one or two others."""
    if torch.rand((), generator=generator) < 0.5:
        return rates
    fresh = _random_rates(generator)
    change = torch.rand(STEPS, generator=generator) < 0.15
    return [new if changed else old for new, old, changed in zip(fresh, rates, change.tolist(), strict=True)]


def dtypes_of(name: str) -> list[torch.dtype]:
    """The dtypes with which a target is attacked: only single precision has reduced products."""
    return [dtype for dtype in DTYPES if torch.finfo(dtype).bits == 32 or not TARGETS[name].reduced]


def searches(trials: int, seed: int) -> Iterator[Found]:
    """All targets, dtypes and policies, with an equal share of the trials."""
    combinations = [(name, dtype, policy) for name in TARGETS for dtype in dtypes_of(name) for policy in BOUNDS]
    share = math.ceil(trials / len(combinations))
    for number, (name, dtype, policy) in enumerate(combinations):
        yield search(name, dtype, policy, share, seed * len(combinations) + number)


def table(found: list[Found]) -> str:
    """A Markdown table."""
    lines = [
        "| target | dtype | policy | trials | worst ‖XXᴴ−I‖₂ found | proven bound | |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        dtype = str(each.dtype).removeprefix("torch.")
        verdict = "" if each.holds else "broken"
        lines.append(
            f"| {each.target} | {dtype} | {each.policy} | {each.trials} | {each.worst:.9g} | "
            f"{each.bound:.8g} + {each.rounding:.1g} | {verdict} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Search, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.adversary", description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file for the table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    began = time.monotonic()
    found = []
    for each in searches(options.trials, options.seed):
        found.append(each)
        print(f"{each.target} {each.dtype} {each.policy}: {each.worst:.6g}", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - began, 1)
    broken = sum(not each.holds for each in found)
    print(table(found))
    print(f"\n{sum(each.trials for each in found)} trials, {broken} bounds broken, {seconds} s")
    command = f"python -m tests.fuzz.adversary --trials {options.trials} --seed {options.seed}"
    rows = [{**each._asdict(), "dtype": str(each.dtype).removeprefix("torch.")} for each in found]
    trials = sum(each.trials for each in found)
    write_record(options.output, command, seed=options.seed, trials=trials, broken=broken, seconds=seconds, rows=rows)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
