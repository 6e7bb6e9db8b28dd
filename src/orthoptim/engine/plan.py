"""The plan of a step: buckets of like matrices, made once, executed by ``step`` and shown by ``opt.plan()``.

A plan is kept from step to step. It is made again when something it was made from changes: the parameters that have a
gradient, their shape, strides, dtype or device, their state, or an option of their group.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.engine.buckets import make_buckets
from orthoptim.engine.naming import common_name
from orthoptim.engine.parts import Division
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.tables import table
from orthoptim.views import View


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
        strategy: how matrices travel between ranks, one of :data:`orthoptim.distributed.choice.STRATEGIES`.
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


class LocalPlan:
    """The buckets of those parameters of a group whose matrices are whole on this device.

    Args:
        rule: how the group is updated.
        params: the parameters, plain tensors or the local parts of DTensors.
        names: what to call them.
        states: state tensors of each parameter, by name; empty before the first step.
        views: the views that divide them; none, where these do not.

    Attributes:
        buckets: what a step works through.
        devices: where they are.
        division: the parts of the parameters.
    """

    def __init__(
        self,
        rule: UpdateRule,
        params: list[Tensor],
        names: Sequence[str],
        states: Mapping[str, list[Tensor]],
        views: Sequence[View],
    ) -> None:
        group = rule.group
        compiles = group["compile"] or torch.compiler.is_compiling()
        self.division = Division(params, views, group["side"])
        names = self.division.owners(names)
        columns = [self.division.state(name, tensors, rule.kinds) for name, tensors in states.items()]
        buckets = make_buckets(self.division.entries(params), group["view"], group["side"], columns, compiles)
        self.buckets = [
            bucket._replace(
                group=rule.index,
                names=tuple(names[i] for i in bucket.members),
                form=rule.method.form(bucket.p, bucket.n, group),
            )
            for bucket in buckets
        ]
        self.devices = {bucket.device for bucket in buckets}
        self.params = params
        self._options = rule.options
        self._kinds = list(map(_kind, params))
        self._states = _flat(states)

    def serves(self, rule: UpdateRule, params: list[Tensor], states: Mapping[str, list[Tensor]]) -> bool:
        """Whether nothing has changed that the plan was made from."""
        flat = _flat(states)
        return (
            self._options == rule.options
            and _same(self.params, params)
            and (not flat or not self._states or _same(self._states, flat))
            and self._kinds == list(map(_kind, params))
        )

    def is_part_of(self, params: list[Tensor]) -> bool:
        """Whether its parameters are among these."""
        return {id(param) for param in self.params} <= {id(param) for param in params}


def _kind(param: Tensor) -> Hashable:
    return param.shape, param.stride(), param.dtype, param.device


def _flat(states: Mapping[str, list[Tensor]]) -> list[Tensor]:
    return [tensor for tensors in states.values() for tensor in tensors]


def _same(tensors: list[Tensor], others: list[Tensor]) -> bool:
    """Whether two lists hold the very same tensors."""
    return len(tensors) == len(others) and all(map(is_, tensors, others))
