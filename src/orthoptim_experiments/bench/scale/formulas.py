"""The bytes of a step in closed form, to compare with what is measured.

With P entries in all matrices that are sent whole, H of them held by a rank and O in the matrices it owns, and an even
cut, HO/P of its own are what it keeps: it sends *out* · (H − HO/P) numbers to other owners and *back* · (O − HO/P) of
its new matrices, and receives what is the other way round. On average that is (out + back) · P/w · (1 − 1/w): POGO
sends X and G and receives X⁺, 3pn/w for each matrix; Muon sends G and receives its polar factor, 2pn/w.
"""

from orthoptim.engine.telemetry import Plan
from orthoptim_experiments.bench.scale.contenders import Contender
from orthoptim_experiments.bench.scale.models import Case, numel

ITEM = 4
"""Bytes of a float32."""


def by_owners(total: float, held: float, owned: float, out: int, back: int) -> tuple[float, float]:
    """Bytes sent and received where matrices go to owners and back.

    Args:
        total: entries of all of them.
        held: those on this rank.
        owned: those of the matrices this rank owns.
        out: numbers for each entry on the way out.
        back: and on the way back.

    Example:
        >>> by_owners(1024, 256, 256, 2, 1)
        (2304.0, 2304.0)
    """
    kept = held * owned / total if total else 0.0
    return (ITEM * (out * (held - kept) + back * (owned - kept)), ITEM * (out * (owned - kept) + back * (held - kept)))


def by_gathering(case: Case) -> float:
    """X and G of every matrix on every rank; shards that are uneven are padded."""
    padded = sum(numel(case.local(shape, 0)) for shape in case.cut())
    return 2 * ITEM * (case.world - 1) * padded


def by_sums(plan: Plan, world: int) -> float:
    """The all-reduces of XXᴴ, XGᴴ and RRᴴ, where the strategy takes them; sent, which is also received."""
    entries = sum(3 * bucket.p**2 * bucket.matrices for bucket in plan if bucket.strategy in ("two-phase", "exchange"))
    return 2 * (1 - 1 / world) * ITEM * entries


def expected(contender: Contender, case: Case, rank: int) -> tuple[float, float]:
    """Bytes that a rank sends and receives."""
    if not contender.out:
        return by_gathering(case), by_gathering(case)
    shapes, exchanged = case.cut(), []
    if contender.plan:
        by_strategy = {(bucket.p, bucket.n, bucket.strategy) for bucket in contender.plan}
        exchanged = [
            shape for shape in shapes if (*sorted(shape), "exchange") in by_strategy and case.cuts_short(shape)
        ]
        shapes = [shape for shape in shapes if (*sorted(shape), "whole") in by_strategy]
    held = sum(numel(case.local(shape, rank)) for shape in shapes)
    to_owners = by_owners(sum(contender.owned), held, contender.owned[rank], contender.out, contender.back)
    # of what is exchanged, each rank owns some of the columns
    total, held = (sum(map(numel, shapes)) for shapes in (exchanged, [case.local(shape, rank) for shape in exchanged]))
    to_columns = by_owners(total, held, total / case.world, contender.out, contender.back)
    sums = by_sums(contender.plan, case.world)
    return to_owners[0] + to_columns[0] + sums, to_owners[1] + to_columns[1] + sums


def mean(contender: Contender, case: Case) -> float:
    """Bytes that ranks send on average."""
    if not contender.out:
        return by_gathering(case)
    exchanged = sum(bucket.p * bucket.n * bucket.matrices for bucket in contender.plan if bucket.strategy == "exchange")
    moved = sum(contender.owned) + exchanged
    entries = (contender.out + contender.back) * moved / case.world * (1 - 1 / case.world)
    return ITEM * entries + by_sums(contender.plan, case.world)
