"""What ``drift()`` and ``plan()`` return: rows that print as a table, with numbers for loggers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from orthoptim.engine.naming import common_name

_NAME_WIDTH = 26  # with it a table of drift is 99 columns wide


class Drift(NamedTuple):
    """How far the matrices of one group (or parameter) are from the manifold, and what happened to their steps.

    Attributes:
        group: index of the param group.
        matrices: number of matrices.
        mean_distance: mean of their distances ‖XXᴴ − I‖_F.
        max_distance: largest of their distances.
        skipped: steps that left a matrix unchanged: its gradient was not finite, or it had no full rank.
        clipped: steps that were shortened, counted per matrix.
        rescued: steps that brought a matrix back from far off the manifold.
        deficient: matrices without full rank, which no step can bring back.
        name: name of the parameter, or of the first of several.
    """

    group: int
    matrices: int
    mean_distance: float
    max_distance: float
    skipped: int
    clipped: int
    rescued: int = 0
    deficient: int = 0
    name: str = ""


class DriftTable(list[Drift]):
    """What ``opt.drift()`` returns: a list of :class:`Drift` that prints as a table.

    Args:
        rows: one for each group, or for each parameter.
        per_parameter: which of the two.
    """

    def __init__(self, rows: Iterable[Drift] = (), per_parameter: bool = False) -> None:
        super().__init__(rows)
        self.per_parameter = per_parameter

    def as_dict(self) -> dict[str, float]:
        """The numbers under keys such as ``"group0/max_distance"``, for loggers.

        Example:
            >>> DriftTable([Drift(0, 5, 1e-7, 3e-7, 0, 2)]).as_dict()["group0/max_distance"]
            3e-07
        """
        skip = ("group", "name")
        return {
            f"group{row.group}/{row.name + '/' if self.per_parameter else ''}{key}": value
            for row in self
            for key, value in row._asdict().items()
            if key not in skip
        }

    def __repr__(self) -> str:
        heads = ("group", "parameter", "matrices", "mean", "max", "skipped", "clipped", "rescued", "deficient")
        cells = [
            (
                str(row.group),
                row.name,
                str(row.matrices),
                f"{row.mean_distance:.1e}",
                f"{row.max_distance:.1e}",
                *map(str, (row.skipped, row.clipped, row.rescued, row.deficient)),
            )
            for row in self
        ]
        return table("distance ‖XXᴴ − I‖_F of each matrix X, and counts of steps", heads, cells)


class BucketPlan(NamedTuple):
    """How one bucket of like matrices is stepped.

    Attributes:
        group: index of the param group.
        matrices: how many there are.
        p: rows, the shorter side.
        n: columns.
        dtype: what is computed in.
        device: where.
        form: the form of the step, for POGO one of :data:`orthoptim.stiefel.FORMS`.
        blocks: in how many parts.
        strategy: how matrices travel between ranks, see :mod:`orthoptim.distributed.strategies`.
        bytes: memory of the matrices.
        name: the parameter, or the first of several.
    """

    group: int
    matrices: int
    p: int
    n: int
    dtype: torch.dtype
    device: torch.device
    form: str
    blocks: int
    strategy: str = "local"
    bytes: int = 0
    name: str = ""


class Plan(list[BucketPlan]):
    """What ``opt.plan()`` returns: a row for each bucket that ``step`` works through. Prints as a table."""

    def as_dict(self) -> dict[str, int]:
        """The numbers under keys such as ``"group0/bucket0/blocks"``, for loggers.

        Example:
            >>> bucket = BucketPlan(0, 5, 8, 8, torch.float32, torch.device("cpu"), "direct-n", 1, bytes=1280)
            >>> list(Plan([bucket]).as_dict().values())
            [5, 8, 8, 1, 1280]
        """
        values: dict[str, int] = {}
        last: dict[int, int] = {}
        for bucket in self:
            number = last[bucket.group] = last.get(bucket.group, -1) + 1
            for key in ("matrices", "p", "n", "blocks", "bytes"):
                values[f"group{bucket.group}/bucket{number}/{key}"] = getattr(bucket, key)
        return values

    def __repr__(self) -> str:
        heads = ("group", "parameter", "matrices", "p×n", "dtype", "device", "form", "blocks", "strategy")
        cells = [
            (
                str(bucket.group),
                bucket.name,
                str(bucket.matrices),
                f"{bucket.p}×{bucket.n}",
                str(bucket.dtype).removeprefix("torch."),
                str(bucket.device),
                bucket.form,
                str(bucket.blocks),
                bucket.strategy,
            )
            for bucket in self
        ]
        return table("buckets of like matrices, and how each is stepped", heads, cells)


def describe(bucket: Any, per_parameter: bool = False) -> list[BucketPlan]:
    """The row of a bucket that ``step`` works through, or a row for the share of each of its parameters.

    Args:
        bucket: a :class:`Bucket`, or a ``ShardedBucket``.
        per_parameter: which of the two.
    """
    size = bucket.p * bucket.n * bucket.dtype.itemsize

    def row(matrices: int, blocks: int, names: Sequence[str]) -> BucketPlan:
        of_matrix = (bucket.p, bucket.n, bucket.dtype, bucket.device, bucket.form)
        moved = (bucket.strategy, matrices * size, common_name(names))
        return BucketPlan(bucket.group, matrices, *of_matrix, blocks, *moved)

    if not per_parameter:
        return [row(sum(bucket.counts), len(bucket.blocks), list(dict.fromkeys(bucket.names)))]
    blocks = Counter(member for block in bucket.blocks for member in block.members)
    members = zip(bucket.members, bucket.counts, bucket.names, strict=True)
    return [row(count, blocks[member], [name]) for member, count, name in members]


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns that are aligned under their heads; long cells keep their end."""
    rows = [[_shortened(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    left = {"parameter", "dtype", "device", "form", "strategy"}
    lines = [
        "  ".join(
            cell.ljust(width) if head in left else cell.rjust(width)
            for head, cell, width in zip(heads, row, widths, strict=True)
        ).rstrip()
        for row in [heads, *rows]
    ]
    return "\n".join([title, *lines])


def _shortened(cell: str) -> str:
    """The end of a long name, which tells more than its beginning."""
    return cell if len(cell) <= _NAME_WIDTH else "…" + cell[1 - _NAME_WIDTH :]
