"""Buckets of like matrices that are cut, who owns which of them, and the rounds in which they are stepped."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.collectives import (
    BACK,
    OUT,
    SHARE,
    AllToAll,
    Answer,
    Request,
    pack_copies,
    pack_pieces,
    pack_ranges,
    piece_sizes,
    range_sizes,
    unpack_pieces,
    unpack_ranges,
)
from orthoptim.distributed.layout import Layout, make_segments, whole_segments
from orthoptim.distributed.placements import is_cut, process_group, replica_group
from orthoptim.engine.plan import copy_all_
from orthoptim.parts import Blocks, scale_factor
from orthoptim.stiefel.cost_model import block_size
from orthoptim.tensors import compute_dtype, is_dtensor, real_dtype
from orthoptim.views import View

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
        strategy: "whole", "two-phase" or "exchange"; "local" for replicas of plain tensors.
        replicas: the ranks that hold the same pieces and share the work; None: there are none.
        shares: the range of matrices that each replica steps.
        owners: for "whole", the range of these matrices that each rank of the group steps, counted from the first.
        group: index of the param group.
        names: those of the members.
        form: the form of the step.
        blocks: its parts, one for each round.
        communication_dtype: what directions travel in, where that is not ``dtype``.
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
    communication_dtype: torch.dtype | None = None
    region: Blocks | None = None
    counts_steps: bool = True
    scale: float = 1.0

    @cached_property
    def block_size(self) -> int:
        """How many whole matrices to step at a time."""
        return block_size(self.p, self.n, self.dtype.itemsize, self.device.type)

    @cached_property
    def real_dtype(self) -> torch.dtype:
        """That of the learning rate."""
        return real_dtype(self.dtype)

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

    def members_of(self, tensors: Sequence[Tensor], per_matrix: bool = False) -> list[Tensor]:
        """Those of the members, among local tensors of all parameters: where the matrices lie in them, as views."""
        picked = [tensors[i] for i in self.members]
        if self.region is None:
            return picked
        return [self.region.values(each) if per_matrix else self.region.entries(each) for each in picked]

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """Local tensors of the members as (B, rows, columns) of the pieces."""
        stored = self.layout.stored
        return self.turn(_stacked(tensors).resolve_conj().reshape(self.count, *stored.shapes[stored.me]))

    def gather_values(self, tensors: Sequence[Tensor]) -> Tensor:
        """Local tensors of the members that have a value for each matrix as (B,)."""
        return _stacked(tensors).reshape(-1)

    def write_(self, tensors: Sequence[Tensor], new: Tensor) -> None:
        """The inverse of :meth:`gather`, or of :meth:`gather_values` where ``new`` is (B,)."""
        if len(tensors) == 1 and new.ndim == 1:
            tensors[0].copy_(new.view_as(tensors[0]))
            return
        copy_all_(list(tensors), self.split(tensors, new))

    def split(self, tensors: Sequence[Tensor], new: Tensor) -> list[Tensor]:
        """What :meth:`write_` writes to each of the tensors."""
        new = new if new.ndim == 1 else self.turn(new)
        return list(new.reshape(len(tensors), *tensors[0].shape).unbind(0))

    def compressed(self, g: Tensor) -> Tensor:
        """A direction as it travels."""
        return g if self.communication_dtype is None else g.to(self.communication_dtype)

    def turn(self, matrices: Tensor) -> Tensor:
        """Matrices (B, p, n) as the parameters hold them, see :attr:`Layout.stored`; and back."""
        return matrices.mT if self.layout.transposed else matrices


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))


def make_sharded_buckets(
    params: Sequence[Tensor],
    view: View,
    side: str,
    choose: Callable[[Layout], str],
    replicas: dist.ProcessGroup | None = None,
) -> tuple[list[int], list[ShardedBucket]]:
    """Sort parameters into buckets: the places of DTensors whose matrices are not cut, and pieces of the others.

    A parameter that a view divides has buckets of its own, one for each way in which its matrices are cut. So does a
    large one: a bucket of several is stacked, which takes memory. Buckets share their collectives anyway.

    The owners of those whose strategy is "whole" are still to be chosen, over all buckets there are.

    Args:
        params: DTensors; or, where there are ``replicas``, plain tensors as well.
        view: how they are seen as matrices.
        side: their orthonormal side.
        choose: the strategy for a layout.
        replicas: the ranks that hold the plain tensors and share their work.
    """
    alike: dict[Any, list[int]] = {}
    for i, param in enumerate(params):
        placed = (param.device_mesh, param.placements) if is_dtensor(param) else ()
        alike.setdefault((param.shape, param.dtype, param.device, *placed), []).append(i)
    local: list[int] = []
    buckets: list[ShardedBucket] = []
    for members in alike.values():
        param = params[members[0]]
        if is_dtensor(param):
            if not is_cut(param, view):
                local.extend(members)
                continue
            segments, world = make_segments(param, view, side), param.device_mesh.size()
            groups = [(process_group(param, layout.ranks, view), replica_group(param)) for layout, _ in segments]
        else:
            assert replicas is not None
            segments, world = whole_segments(param, view, side), dist.get_world_size(replicas)
            groups = [(replicas, replicas)] * len(segments)
        dtype = compute_dtype(param.dtype)
        half = dtype != param.dtype
        alone = view.is_divided or param.numel() * dtype.itemsize >= ALONE_BYTES * world
        for together in [[i] for i in members] if alone else [members]:
            for number, ((layout, region), (group, copies)) in enumerate(zip(segments, groups, strict=True)):
                bucket = ShardedBucket(together, layout, group, dtype, half, param.device, choose(layout), copies)
                sides = (layout.n, layout.p) if layout.transposed else (layout.p, layout.n)
                scale = scale_factor(view.scale, *sides)
                buckets.append(replace(bucket, region=region, counts_steps=number == 0, blocks=[], scale=scale))
    return local, buckets


def local_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """:func:`local_part` of each, without a call for each: there are hundreds of them in a step."""
    return [getattr(each, "_local_tensor", each) for each in tensors]


def local_gradients(params: Sequence[Tensor]) -> list[Tensor | None]:
    """What this rank holds of the gradients, placed as the parameters are; None where there is none."""
    grads: list[Tensor | None] = []
    for param in params:
        grad, spec = param.grad, getattr(param, "_spec", None)
        if grad is not None and spec is not None:
            placed: Any = grad
            if placed._spec.placements != spec.placements:  # such as a pending sum
                placed = placed.redistribute(placements=spec.placements)
            grad = placed._local_tensor
        grads.append(grad)
    return grads


# What travels: the matrices of a bucket, which its owners and its replicas work on.


def to_owners(bucket: ShardedBucket, fields: Sequence[Tensor], stage: int = OUT) -> Generator[Request, Answer, Answer]:
    """Send pieces to the owners of their matrices: the answer is the fields of whole matrices, and sums of the values.

    Args:
        bucket: the bucket.
        fields: pieces (B, rows, columns), as the parameters hold them, then values (B,), of this replica's share.
        stage: when.
    """
    layout, owners = bucket.layout.stored, bucket.owners
    first, last = owners[layout.me]
    send, expect = range_sizes(owners, fields), piece_sizes(layout, fields, last - first)
    unpack = partial(unpack_pieces, layout, [field.new_empty(0, *field.shape[1:]) for field in fields], last - first)
    request = AllToAll(send, expect, partial(pack_ranges, owners, fields), unpack, stage)
    del fields  # their memory is free once they are packed
    return (yield request)


def from_owners(
    bucket: ShardedBucket, fields: Sequence[Tensor], like: Sequence[Tensor]
) -> Generator[Request, Answer, Answer]:
    """The way back: of the fields of whole matrices every rank is sent its pieces, and all values.

    Args:
        bucket: the bucket.
        fields: those of the matrices that this rank owns.
        like: what the fields that come back look like, but for B.
    """
    layout, owners = bucket.layout.stored, bucket.owners
    first, last = owners[layout.me]
    send, expect = piece_sizes(layout, fields, last - first), range_sizes(owners, like)
    request = AllToAll(send, expect, partial(pack_pieces, layout, fields), partial(unpack_ranges, owners, like), BACK)
    del fields
    return (yield request)


def share(
    bucket: ShardedBucket, fields: Sequence[Tensor], like: Sequence[Tensor]
) -> Generator[Request, Answer, Answer]:
    """Replicas send each other the fields of their share of the matrices: all then hold the same bits."""
    assert bucket.replicas is not None
    first, last = bucket.share
    ranges = [(0, last - first)] * dist.get_world_size(bucket.replicas)
    send, expect = range_sizes(ranges, fields), range_sizes(bucket.shares, like)
    unpack = partial(unpack_ranges, bucket.shares, like)
    return (yield AllToAll(send, expect, partial(pack_copies, ranges, fields), unpack, SHARE))


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
        whole = bucket.strategy == "whole"
        by_group.setdefault((bucket.process_group, bucket.replicas, whole, bucket.layout.holder), []).append(i)
    for (group, replicas, whole, holder), places in by_group.items():
        ranks = range(dist.get_world_size(group))
        world = len(ranks) if whole and holder is None else 1  # else one has all of a matrix, or all share in it
        copies = 1 if replicas is None else dist.get_world_size(replicas)
        costs = [(float(buckets[i].layout.p ** 2 * buckets[i].layout.n), buckets[i].count) for i in places]
        for i, ranges in zip(places, assign(costs, world * copies), strict=True):
            shares = tuple((ranges[k * world][0], ranges[k * world + world - 1][1]) for k in range(copies))
            here = 0 if replicas is None else dist.get_rank(replicas)
            first, last = shares[here]
            owners = tuple((a - first, b - first) for a, b in ranges[here * world :][:world])
            if holder is not None:  # who has all of a matrix owns it
                owners = tuple((0 if k <= holder else last - first, 0 if k < holder else last - first) for k in ranks)
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
