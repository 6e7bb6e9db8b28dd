"""What an optimizer tells of itself: rows that are named tuples, in lists that print as tables."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.engine.buckets import Bucket
from orthoptim.engine.naming import common_name
from orthoptim.views import View

_NAME_WIDTH = 26  # with it a table of drift is 99 columns wide


class Drift(NamedTuple):
    """How far the matrices of one group (or parameter) are from the manifold, and what happened to their steps.

    Attributes:
        group: index of the param group.
        matrices: how many there are.
        mean_distance: the mean of their distances ‖XXᴴ − I‖_F.
        max_distance: the largest of them.
        skipped: how many steps of a matrix were left out: not finite, or of a matrix without full rank.
        clipped: how many steps of a matrix were shortened.
        rescued: how many steps of a matrix brought it back from far away.
        deficient: how many matrices do not have full rank, so that no step can bring them back.
        name: the parameter, or the first of several.
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
        return _table("distance ‖XXᴴ − I‖_F of each matrix X, and counts of steps", heads, cells)


class Plan(NamedTuple):
    """How one bucket of like matrices is stepped.

    Attributes:
        group: index of its param group.
        matrices: how many there are.
        p: rows, the shorter side.
        n: columns.
        dtype: what is computed in.
        device: where.
        form: the form of the step, for POGO one of :data:`orthoptim.stiefel.FORMS`.
        blocks: in how many pieces.
        strategy: which way its matrices take between ranks, one of :data:`orthoptim.distributed.choice.STRATEGIES`.
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
    name: str = ""


class PlanTable(list[Plan]):
    """What ``opt.plan()`` returns: a list of :class:`Plan` that prints as a table."""

    def as_dict(self) -> dict[str, int]:
        """The numbers under keys such as ``"group0/bucket0/blocks"``, for loggers.

        Example:
            >>> plan = Plan(0, 5, 8, 8, torch.float32, torch.device("cpu"), "direct-n", 1)
            >>> PlanTable([plan]).as_dict()
            {'group0/bucket0/matrices': 5, 'group0/bucket0/p': 8, 'group0/bucket0/n': 8, 'group0/bucket0/blocks': 1}
        """
        values: dict[str, int] = {}
        seen: dict[int, int] = {}
        for row in self:
            bucket = seen[row.group] = seen.get(row.group, -1) + 1
            for key in ("matrices", "p", "n", "blocks"):
                values[f"group{row.group}/bucket{bucket}/{key}"] = getattr(row, key)
        return values

    def __repr__(self) -> str:
        heads = ("group", "parameter", "matrices", "p×n", "dtype", "device", "form", "blocks", "strategy")
        cells = [
            (
                str(row.group),
                row.name,
                str(row.matrices),
                f"{row.p}×{row.n}",
                str(row.dtype).removeprefix("torch."),
                str(row.device),
                row.form,
                str(row.blocks),
                row.strategy,
            )
            for row in self
        ]
        return _table("buckets of like matrices, and how each is stepped", heads, cells)


def plans_of(
    bucket: Bucket,
    named: Sequence[tuple[str, Tensor]],
    group: Mapping[str, Any],
    index: int,
    form: str,
    per_parameter: bool = False,
) -> list[Plan]:
    """The rows of a bucket that is stepped on one device: one, or one for each parameter.

    Args:
        bucket: one of those that :func:`make_buckets` made.
        named: the parameters, or their parts, that it was made of, with names.
        group: the param group.
        index: that of the group.
        form: the form of the step.
        per_parameter: whether each parameter gets a row.
    """
    kind = (bucket.p, bucket.n, bucket.dtype, bucket.device, form)
    if not per_parameter:
        name = common_name(list(dict.fromkeys(named[i][0] for i in bucket.members)))
        return [Plan(index, bucket.matrices, *kind, len(bucket.blocks), name=name)]
    blocks = Counter(i for block in bucket.blocks for i in block.members)
    rows = []
    for i in bucket.members:
        name, param = named[i]
        matrices = View.of(group["view"]).part(param.shape, group["side"]).batch.numel()
        rows.append(Plan(index, matrices, *kind, blocks[i], name=name))
    return rows


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
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
