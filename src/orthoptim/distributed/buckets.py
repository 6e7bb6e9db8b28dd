"""Buckets of like matrices that are cut, who owns which of them, and the rounds in which they are stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.collectives import (
    FieldSpec,
    PackedLayout,
    Received,
    equal_steps,
    packed,
    packed_layout,
    process_group,
    replica_group,
)
from orthoptim.distributed.layout import Index, Layout, is_cut, make_segments
from orthoptim.engine.blocks import copy_all_
from orthoptim.tensors import compute_dtype
from orthoptim.views import Blocks, View, scale_factor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

ALONE_BYTES = 8 << 20
"""The size of a parameter, on each rank, from which it is a bucket of its own."""


@dataclass(frozen=True, eq=False)
class ShardedBucket:
    """Parameters of one shape, dtype and placement, whose matrices are cut; or matrices of one that a view divides.

    Attributes:
        members: positions in the list of parameters.
        layout: how each is cut.
        process_group: the ranks that hold the other pieces.
        dtype: to compute in.
        half: whether the parameters are stored in less.
        device: where.
        strategy: "whole", "two-phase" or "exchange".
        replicas: the ranks that hold the same pieces and share the work; None: there are none.
        shares: the range of matrices that each replica steps.
        owners: for "whole", the range of these matrices that each rank of the group steps, counted from the first.
        group: index of the param group.
        names: those of the members.
        form: the form of the step.
        blocks: its parts, one for each round.
        region: where the pieces are in the local tensor of a parameter that a view divides.
        counts_steps: whether its step counts as one of its parameters: not if other matrices of these have counted it.
        scale: σ: the parameters hold σ times the matrices.
    """

    members: list[int]
    layout: Layout
    process_group: dist.ProcessGroup
    dtype: torch.dtype
    half: bool
    device: torch.device
    strategy: str
    replicas: dist.ProcessGroup | None = None
    shares: tuple[tuple[int, int], ...] = ()
    owners: tuple[tuple[int, int], ...] = ()
    group: int = 0
    names: tuple[str, ...] = ()
    form: str = ""
    blocks: list[ShardedBucket] = field(default_factory=list)
    region: Blocks | None = None
    counts_steps: bool = True
    scale: float = 1.0

    @property
    def count(self) -> int:
        """How many matrices there are pieces of; none, where no rank of the group has a part of the batch."""
        return len(self.members) * self.layout.batch.numel()

    @property
    def share(self) -> tuple[int, int]:
        """The range of matrices that this rank's replica steps."""
        return self.shares[0 if self.replicas is None else dist.get_rank(self.replicas)]

    @property
    def counts(self) -> list[int]:
        """For each member, how many matrices it holds."""
        return [self.layout.batch.numel()] * len(self.members)

    @property
    def p(self) -> int:
        """Rows of a matrix, the shorter side."""
        return self.layout.p

    @property
    def n(self) -> int:
        """Columns of a matrix."""
        return self.layout.n

    def pick(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The members' among tensors that belong to all parameters."""
        return [tensors[i] for i in self.members]

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """Local tensors of the members as (B, rows, columns) of the pieces."""
        stored = self.layout.stored
        pieces = self._stacked(self._entries(tensors))
        return self.turn(pieces.resolve_conj().reshape(self.count, *stored.shapes[stored.me]))

    def gather_values(self, tensors: Sequence[Tensor]) -> Tensor:
        """Local tensors of the members that have a value for each matrix as (B,)."""
        return self._stacked(self._values(tensors)).reshape(-1)

    def write_(self, tensors: Sequence[Tensor], new: Tensor) -> None:
        """The inverse of :meth:`gather`, or of :meth:`gather_values` where ``new`` is (B,)."""
        targets = self._values(tensors) if new.ndim == 1 else self._entries(tensors)
        new = new if new.ndim == 1 else self.turn(new)
        copy_all_(targets, list(new.reshape(len(targets), *targets[0].shape).unbind(0)))

    def turn(self, matrices: Tensor) -> Tensor:
        """Matrices (B, p, n) as the parameters hold them, see :attr:`Layout.stored`; and back."""
        return matrices.mT if self.layout.transposed else matrices

    def _entries(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors) if self.region is None else [self.region.entries(tensor) for tensor in tensors]

    def _values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors) if self.region is None else [self.region.values(tensor) for tensor in tensors]

    @staticmethod
    def _stacked(tensors: list[Tensor]) -> Tensor:
        return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


def make_sharded_buckets(
    params: Sequence[DTensor], view: View, side: str, choose: Callable[[Layout], str]
) -> tuple[list[int], list[ShardedBucket]]:
    """Sort parameters into buckets: the places of those whose matrices are not cut, and pieces of the others.

    A parameter that a view divides has buckets of its own, one for each way in which its matrices are cut. So does a
    large one: a bucket of several is stacked, which takes memory. Buckets share their collectives anyway.

    The owners of those whose strategy is "whole" are still to be chosen, over all buckets there are.
    """
    buckets: dict[Any, list[int]] = {}
    for i, param in enumerate(params):
        key = (param.shape, param.dtype, param.device, param.device_mesh, param.placements)
        buckets.setdefault(key, []).append(i)
    local: list[int] = []
    cut: list[ShardedBucket] = []
    for members in buckets.values():
        param = params[members[0]]
        if not is_cut(param, view):
            local.extend(members)
            continue
        dtype = compute_dtype(param.dtype)
        half = dtype != param.dtype
        alone = view.is_divided or param.numel() * dtype.itemsize >= ALONE_BYTES * param.device_mesh.size()
        segments = make_segments(param, view, side)
        for together in [[i] for i in members] if alone else [members]:
            for number, (layout, region) in enumerate(segments):
                group, strategy = process_group(param, layout, view), choose(layout)
                replicas = replica_group(param)
                bucket = ShardedBucket(together, layout, group, dtype, half, param.device, strategy, replicas)
                sides = (layout.n, layout.p) if layout.transposed else (layout.p, layout.n)
                scale = scale_factor(view.scale, *sides)
                cut.append(replace(bucket, region=region, counts_steps=number == 0, blocks=[], scale=scale))
    return local, cut


# Pieces of whole matrices, as bytes for the members of a group


def cut(layout: Layout, matrices: Sequence[Tensor], values: Sequence[Tensor] = ()) -> dict[int, list[Tensor]]:
    """The bytes for each member of a group: its pieces of matrices (B, p, n), and all of the values (B,)."""
    fields = [*matrices, *values]
    count, (dim, even) = fields[0].shape[0], layout.even
    if not count:
        return {}
    found: dict[int, list[Tensor]] = {}
    if even:  # at once
        record = _record(layout.shapes[0], fields)
        size = count * record.size
        buffer = torch.empty(even * size, dtype=torch.uint8, device=fields[0].device)
        width = layout.shapes[0][dim - 1]
        for target, each in zip(record.unpack_all(buffer, size, even, count), fields, strict=True):
            if each.ndim > 1:
                each = each.narrow(dim, 0, even * width).unfold(dim, width, width).movedim((dim, -1), (0, dim + 1))
            target.copy_(each)
        found = {member: [buffer[member * size : (member + 1) * size]] for member in range(even)}
    for member in range(even, len(layout.ranks)):
        subscript = _place(layout.rows[member], layout.columns[member])
        found[member] = [packed([*(matrix[subscript] for matrix in matrices), *values])]
    return found


def to_owners(bucket: ShardedBucket, fields: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """The bytes for each owner of matrices of a bucket: all that is held of them."""
    buffer, (first, last) = packed(fields), bucket.share
    size = buffer.shape[0] // (last - first)
    return {member: [buffer[a * size : b * size]] for member, (a, b) in enumerate(bucket.owners) if b > a and size}


def sizes(layout: Layout, fields: Sequence[Tensor], count: int) -> dict[int, list[int]]:
    """How many bytes each member sends of ``count`` matrices; its pieces look like ``fields`` but for their shape."""
    records = [_record(shape, fields).size for shape in layout.shapes] if count else []
    return {member: [count * size] for member, size in enumerate(records) if size}


def assemble(layout: Layout, received: Received, fields: Sequence[Tensor], count: int) -> list[Tensor]:
    """The fields of ``count`` matrices: whole matrices from their pieces, and the sums of the members' values.

    Args:
        layout: how the matrices are cut.
        received: the bytes of each member; emptied, to free their memory.
        fields: what they look like, but for the shape of pieces.
        count: how many matrices there are.
    """
    whole = [each.new_empty(count, *((layout.p, layout.n) if each.ndim > 1 else ())) for each in fields]
    if count == 0:
        return whole
    for target in whole:
        if target.ndim == 1:
            target.zero_()
    dim, even = layout.even
    step = equal_steps([received[member][0] for member in range(even)])
    if step is not None:  # at once
        width = layout.shapes[0][dim - 1]
        stacked = _record(layout.shapes[0], fields).unpack_all(received[0][0], step, even, count)
        for target, each in zip(whole, stacked, strict=True):
            if target.ndim == 1:
                target.add_(each.sum(0))
            else:
                pieces = target.narrow(dim, 0, even * width).unfold(dim, width, width)
                pieces.copy_(each.movedim((0, dim + 1), (dim, -1)))
    for member, (buffer,) in received.items():
        if step is not None and member < even:
            continue
        parts = _record(layout.shapes[member], fields).unpack(buffer, count)
        subscript = _place(layout.rows[member], layout.columns[member])
        for target, part in zip(whole, parts, strict=True):
            if target.ndim == 1:
                target.add_(part)
            elif part.numel():
                target[subscript] = part
    received.clear()
    return whole


def _record(shape: tuple[int, int], fields: Sequence[Tensor]) -> PackedLayout:
    return packed_layout(*(FieldSpec(shape if each.ndim > 1 else (), each.dtype) for each in fields))


def _place(rows: Index, columns: Index) -> tuple[Index | Tensor, ...]:
    """A subscript of batches of matrices."""
    if isinstance(rows, Tensor) and isinstance(columns, Tensor):
        return slice(None), rows[:, None], columns
    return slice(None), rows, columns


# Rounds: how much of the matrices that are cut is under way at a time. All that is under way shares its collectives,
# and takes about ten times its size in buffers, copies and temporaries. So a step is cut into rounds by bytes, whatever
# the number of parameters; small models take one.

ROUND_BYTES = 1 << 28
"""Of a round, for each rank: with what is made of them, some 2.5 GB beside the state."""


def make_rounds(buckets: Sequence[ShardedBucket], round_bytes: int = ROUND_BYTES) -> list[list[ShardedBucket]]:
    """Buckets in parts, by rounds, with the owners of those that are sent whole."""
    by_group: dict[dist.ProcessGroup, list[ShardedBucket]] = {}
    for bucket in buckets:
        by_group.setdefault(bucket.process_group, []).append(bucket)
    rounds: list[list[ShardedBucket]] = []
    for group, of_group in by_group.items():
        for index, parts in enumerate(_fill(of_group, dist.get_world_size(group), round_bytes)):
            if index == len(rounds):
                rounds.append([])
            rounds[index].extend(parts)
    return [choose_owners(parts) for parts in rounds]


def _fill(buckets: Iterable[ShardedBucket], world: int, round_bytes: int) -> list[list[ShardedBucket]]:
    """The rounds of one group, the largest matrices first.

    There is room for as many matrices as there are ranks, however large they are: with fewer, ranks would idle.
    """
    ordered = sorted(buckets, key=matrix_bytes, reverse=True)  # stable: the same on every rank
    room = world * max(round_bytes, matrix_bytes(ordered[0]))
    rounds: list[list[ShardedBucket]] = [[]]
    left = room
    for size, alike in groupby(ordered, key=lambda bucket: matrix_bytes(bucket) * bucket.layout.batch.numel()):
        todo = list(alike)
        while todo:
            count = sum(len(bucket.members) for bucket in todo)
            fit = count if size == 0 else min(count, left // size)
            if world < fit < count:  # the same number for each rank
                fit -= fit % world
            if fit or not rounds[-1]:
                fit = max(1, fit)  # a parameter is not divided
                left -= fit * size
                while fit:
                    bucket = todo.pop(0)
                    rounds[-1].append(replace(bucket, members=bucket.members[:fit]))
                    if len(bucket.members) > fit:
                        todo.insert(0, replace(bucket, members=bucket.members[fit:]))
                    fit -= len(rounds[-1][-1].members)
            if todo:
                rounds.append([])
                left = room
    return rounds


def matrix_bytes(bucket: ShardedBucket) -> int:
    """The size of one matrix, whole."""
    return bucket.layout.p * bucket.layout.n * bucket.dtype.itemsize


def choose_owners(buckets: Sequence[ShardedBucket]) -> list[ShardedBucket]:
    """Spread the matrices of a round over replicas and, where they are sent whole, over the ranks of each group."""
    chosen = list(buckets)
    by_group: dict[tuple[Any, ...], list[int]] = {}
    for i, bucket in enumerate(buckets):
        by_group.setdefault((bucket.process_group, bucket.replicas, bucket.strategy == "whole"), []).append(i)
    for (group, replicas, whole), places in by_group.items():
        world = dist.get_world_size(group) if whole else 1  # else the ranks of a group share every matrix
        copies = 1 if replicas is None else dist.get_world_size(replicas)
        costs = [(float(buckets[i].layout.p ** 2 * buckets[i].layout.n), buckets[i].count) for i in places]
        for i, ranges in zip(places, assign(costs, world * copies), strict=True):
            shares = tuple((ranges[k * world][0], ranges[k * world + world - 1][1]) for k in range(copies))
            here = 0 if replicas is None else dist.get_rank(replicas)
            owners = tuple((a - shares[here][0], b - shares[here][0]) for a, b in ranges[here * world :][:world])
            chosen[i] = replace(buckets[i], shares=shares, owners=owners if whole else ())
    return chosen


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
