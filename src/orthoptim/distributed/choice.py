"""Which way the matrices of a bucket take between ranks, chosen by how they are cut and by their shape alone.

| cut | strategy | collectives of a step |
|---|---|---|
| not at all: replicated, or split over the batch | ``local`` | none |
| near-square, n/p < 2w; or the method or its base needs whole matrices | ``whole`` | 2 all-to-all |
| the long side | ``two-phase`` | 2 all-reduce |
| the short side | ``exchange``: to a cut of the long side, two-phase, and back | 2 all-to-all, 2 all-reduce |
| both sides | ``whole`` | 2 all-to-all |

``whole`` sends 3pn/w numbers per matrix and rank (X and G to an owner, X⁺ back); ``two-phase`` all-reduces XXᴴ and XGᴴ,
then RRᴴ, which sends 6p², whatever n is: less from n/p = 2w on. ``exchange`` sends the sum of both, never less than
``whole`` on average, and from there on at most twice as much; but all ranks share in every matrix, where few owners
would have much to do while the others wait. Cuts in strides, as of FSDP2 over tensor parallelism, are cuts like any
other: sums do not ask for the order of columns, and owners put it right.
"""

from orthoptim.distributed.layout import Layout

STRATEGIES = ("local", "whole", "two-phase", "exchange")


def choose(layout: Layout, by_columns: bool) -> str:
    """The strategy of a bucket.

    Args:
        layout: how its matrices are cut.
        by_columns: whether method and base can step some of the columns, knowing sums over all of them.
    """
    cut, p, n, world = layout.cut, layout.p, layout.n, len(layout.ranks)
    if cut == "none":
        return "local"
    if cut == "both" or not by_columns or n < 2 * p * world:
        return "whole"
    return "two-phase" if cut == "columns" else "exchange"


def assign(costs: list[tuple[float, int]], world: int) -> list[list[tuple[int, int]]]:
    """Ranges of matrices for each of ``world`` owners, such that their work is about equal.

    Args:
        costs: for each bucket the cost of one matrix, and how many there are.
        world: the number of ranks.

    Example:
        >>> assign([(1.0, 5), (10.0, 1)], 2)
        [[(0, 0), (0, 5)], [(0, 1), (1, 1)]]
    """
    loads = [0.0] * world
    counts = [[0] * world for _ in costs]
    for bucket in sorted(range(len(costs)), key=lambda i: -costs[i][0]):  # stable: the same on every rank
        cost, matrices = costs[bucket]
        for _ in range(matrices):
            owner = loads.index(min(loads))
            loads[owner] += cost
            counts[bucket][owner] += 1
    ranges = []
    for row in counts:
        starts = [sum(row[:owner]) for owner in range(world)]
        ranges.append([(start, start + count) for start, count in zip(starts, row, strict=True)])
    return ranges
