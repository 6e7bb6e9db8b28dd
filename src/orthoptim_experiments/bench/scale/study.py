"""The study: every contender, for models and world sizes, measured on the rank that communicates most."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from orthoptim_experiments.bench.scale.contenders import CONTENDERS, Contender
from orthoptim_experiments.bench.scale.formulas import expected, mean
from orthoptim_experiments.bench.scale.models import MODELS, PLACEMENTS, Case
from orthoptim_experiments.bench.scale.tally import Tally
from orthoptim_experiments.bench.scale.world import fake_world, parameters


class Figures(NamedTuple):
    """One step of one rank.

    Attributes:
        rank: which.
        owned: entries of the matrices that are sent to it whole.
        collectives: by name.
        sent: bytes.
        received: bytes.
        expected_sent: by the closed formulas.
        expected_received: by the closed formulas.
        extra: bytes that the step allocates at most, beyond parameters, gradients and state.
        state: bytes that are kept from one step to the next.
        flops: of matrix products, on the rank that has most of them.
        operations: of torch, on the host.
        host: seconds of the host for a step, the least of three; of the library alone.
    """

    rank: int
    owned: int
    collectives: dict[str, int]
    sent: float
    received: float
    expected_sent: float
    expected_received: float
    extra: int
    state: int
    flops: int
    operations: int
    host: float = 0.0


class Row(NamedTuple):
    """A contender at one model and world size.

    Attributes:
        model: its name.
        world: the number of ranks.
        contender: its name.
        placement: which dim of the matrices is cut.
        strategies: the number of matrices by the strategy that the library has chosen.
        busiest: what is measured on the rank that moves most.
        mean: bytes that a rank sends on average, by the closed formulas.
    """

    model: str
    world: int
    contender: str
    placement: str
    strategies: dict[str, int]
    busiest: Figures
    mean: float

    def plain(self) -> dict[str, Any]:
        """The row as plain values for JSON."""
        return {**self._asdict(), "busiest": self.busiest._asdict()}


def check(models: Sequence[str], worlds: Sequence[int]) -> None:
    """Check the names of models and the sizes of worlds.

    Raises:
        ValueError: for a model there is none of, or a world of fewer than two ranks.
    """
    for name in models:
        if name not in MODELS:
            raise ValueError(f"unknown model {name!r}; there are {', '.join(MODELS)}")
    for world in worlds:
        if world < 2:
            raise ValueError(f"a world of {world} has nobody to share matrices with; use 2 or more")


def compare(name: str, world: int) -> Iterator[Row]:
    """All contenders at one model and world size."""
    model = MODELS[name]
    for contender in CONTENDERS:
        for placement in PLACEMENTS if contender == "orthoptim" else PLACEMENTS[:1]:
            case = Case(model.layer(), model.layers, placement, world)
            yield Row(name, world, contender, placement, *measure(contender, case))


def measure(name: str, case: Case, rank: int | None = None) -> tuple[dict[str, int], Figures, float]:
    """The strategies, the figures of a rank (by default of the busiest), and the bytes of ranks on average."""
    if name == "gather":
        # each matrix by itself and all ranks alike: what a layer adds, the others add too
        single, double = (_measure(name, case._replace(layers=n), 0 if rank is None else rank) for n in (1, 2))
        figures = _extrapolate(single[1], double[1], case.layers)
        return single[0], figures, figures.expected_sent
    return _measure(name, case, rank)


def _measure(name: str, case: Case, rank: int | None) -> tuple[dict[str, int], Figures, float]:
    with fake_world(rank or 0, case.world) as mesh:
        contender = CONTENDERS[name](parameters(case, mesh))
        busiest = _busiest(contender, case) if rank is None else rank
        hardest = contender.work.index(max(contender.work)) if rank is None else rank
        figures = _count(contender, case, busiest) if busiest == (rank or 0) else None
    if figures is None:
        with fake_world(busiest, case.world) as mesh:
            figures = _count(CONTENDERS[name](parameters(case, mesh)), case, busiest)
    if hardest != busiest:
        with fake_world(hardest, case.world) as mesh:
            flops = _count(CONTENDERS[name](parameters(case, mesh)), case, hardest).flops
        figures = figures._replace(flops=max(flops, figures.flops))
    strategies: Counter[str] = Counter()
    for bucket in contender.plan:
        strategies[bucket.strategy] += bucket.matrices
    return dict(strategies), figures, mean(contender, case)


def _busiest(contender: Contender, case: Case) -> int:
    """The first of the ranks that send and receive most: entries they hold, and entries of matrices they own."""
    loads = [owned + case.held(rank) for rank, owned in enumerate(contender.owned)]
    return loads.index(max(loads))


def _count(contender: Contender, case: Case, rank: int) -> Figures:
    with torch.no_grad(), Tally() as tally:
        contender.step()
    host = 0.0
    if contender.plan:
        seconds = []
        for _ in range(3):
            began = time.process_time()
            contender.step()
            seconds.append(time.process_time() - began)
        host = min(seconds)
    return Figures(
        rank,
        contender.owned[rank],
        dict(tally.collectives),
        tally.sent,
        tally.received,
        *expected(contender, case, rank),
        tally.peak - tally.held,  # what is still held is state, which the first step creates
        contender.state(),
        tally.flops,
        tally.operations,
        host,
    )


def _extrapolate(one: Figures, two: Figures, layers: int) -> Figures:
    """The figures of many layers, from those of one and of two."""

    def grow(a: Any, b: Any) -> Any:
        return {key: grow(a[key], b[key]) for key in b} if isinstance(b, dict) else a + (layers - 1) * (b - a)

    grown = Figures(*(grow(a, b) for a, b in zip(one, two, strict=True)))
    return grown._replace(extra=two.extra)
