"""What ``opt.plan()`` shows: the buckets of like matrices that ``step`` works through."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from orthoptim.engine.naming import common_name
from orthoptim.engine.tables import table


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
        return BucketPlan(
            bucket.group,
            matrices,
            bucket.p,
            bucket.n,
            bucket.dtype,
            bucket.device,
            bucket.form,
            blocks,
            bucket.strategy,
            matrices * size,
            common_name(names),
        )

    if not per_parameter:
        return [row(sum(bucket.counts), len(bucket.blocks), list(dict.fromkeys(bucket.names)))]
    blocks = Counter(member for block in bucket.blocks for member in block.members)
    members = zip(bucket.members, bucket.counts, bucket.names, strict=True)
    return [row(count, blocks[member], [name]) for member, count, name in members]
