"""Collectives of a step: the requests of many buckets, served together, while other buckets compute.

The step of a bucket whose matrices are cut is a coroutine. It yields a request to the other ranks and is sent the
answer. :func:`run` takes the coroutines of all buckets of a round through their stages together, so that one stage is
one collective, however many parameters there are; and it starts the next round before it computes the present one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.layout import Index, Layout
from orthoptim.stiefel import as_real

# Stages of a step. Matrices go out, more of them where owners have lost theirs, sums are taken, matrices come back,
# replicas share what they have computed; a bucket may leave any of them out.
OUT, MORE, SUM, BACK, SHARE = 0, 1, 2, 100, 101

ALIGNMENT = 16
"""Bytes: that of complex128, and a divisor of the size of every record."""

Starts = dict[int, int]
"""Where in a buffer the bytes that go to members of a group, or come from them, begin."""


# Requests


@dataclass
class AllReduce:
    """Tensors whose sum over the group is requested; the answer is a list of sums."""

    tensors: list[Tensor]
    stage: int


@dataclass
class AllToAll:
    """Bytes for members of the group; the answer is a list of tensors, made from the bytes that they sent.

    Attributes:
        send: how many bytes go to each member; those to whom nothing is sent are left out.
        expect: how many come from each member. All sizes are multiples of :data:`ALIGNMENT`.
        pack: writes what is sent into a buffer.
        unpack: makes tensors from a buffer that was received, whose memory is given back after that.
        stage: one of those above.
    """

    send: dict[int, int]
    expect: dict[int, int]
    pack: Callable[[Tensor, Starts], None]
    unpack: Callable[[Tensor, Starts], list[Tensor]]
    stage: int


Request = AllReduce | AllToAll
Answer = list[Tensor]
Wait = Callable[[], list[Answer]]
"""Waits for a collective that is under way, and returns the answers, one for each request."""

Steps = Generator[Request, Answer, None]


class Job(NamedTuple):
    """The step of one bucket: a coroutine, the group it talks to, and that of the replicas that share its work."""

    group: dist.ProcessGroup
    device: torch.device
    steps: Steps
    replicas: dist.ProcessGroup | None = None

    def group_of(self, request: Request) -> dist.ProcessGroup:
        """The group that serves a request."""
        return self.replicas if request.stage == SHARE and self.replicas is not None else self.group


def run(rounds: Iterator[Sequence[Job]], overlap: bool = True) -> None:
    """Run the jobs of all rounds to their end.

    The matrices of round k + 1 travel to their owners while round k computes, and those of round k travel back while
    round k + 1 computes. At most three rounds have buffers: one on its way out, one at work, one on its way back.

    Args:
        rounds: jobs in an order that is the same on all ranks. A round is made when it starts.
        overlap: whether a round starts before the one before it has ended; without, one round has buffers.
    """
    started = map(_Round, rounds)
    if not overlap:
        for each in started:
            each.finish(SHARE)
    current, last = next(started, None), None
    while current is not None:
        current.launch(BACK - 1)
        following = next(started, None)
        if following is not None:
            following.launch(BACK - 1)
        current.finish(BACK - 1)
        current.launch(BACK)
        if last is not None:
            last.finish(SHARE)
        last, current = current, following
    if last is not None:
        last.finish(SHARE)


class _Round:
    """Jobs that share their collectives: what they wait for, and what is under way."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        # groups are served in this order, also by ranks without a part in some of the jobs: no two wait for each other
        self._order: dict[tuple[dist.ProcessGroup, torch.device], int] = {}
        self._numbers = {job: number for number, job in enumerate(jobs)}
        self._waiting: list[tuple[Job, Request]] = []
        self._under_way: list[tuple[list[Job], Wait]] = []
        for job in jobs:
            for group in (job.group, job.replicas):
                if group is not None:
                    self._order.setdefault((group, job.device), len(self._order))
            with suppress(StopIteration):
                self._waiting.append((job, next(job.steps)))

    def launch(self, last: int) -> None:
        """Start the collectives of the next stage, if that is not after ``last``."""
        stage = min((request.stage for _, request in self._waiting), default=SHARE + 1)
        if self._under_way or stage > last:
            return
        routes: dict[tuple[dist.ProcessGroup, torch.device], list[tuple[Job, Request]]] = {}
        # in the order of jobs: a rank without a share of a bucket comes to its last stage before the others do
        for job, request in sorted(self._waiting, key=lambda waiting: self._numbers[waiting[0]]):
            if request.stage == stage:
                routes.setdefault((job.group_of(request), job.device), []).append((job, request))
        self._waiting = [(job, request) for job, request in self._waiting if request.stage != stage]
        for (group, device), served in sorted(routes.items(), key=lambda route: self._order[route[0]]):
            jobs = [job for job, _ in served]
            sums = [request for _, request in served if isinstance(request, AllReduce)]
            swaps = [request for _, request in served if isinstance(request, AllToAll)]
            served.clear()  # requests of one stage are of one kind
            wait = all_reduce_coalesced(sums, group) if sums else all_to_all_coalesced(swaps, group, device)
            self._under_way.append((jobs, wait))

    def finish(self, last: int) -> None:
        """Go through all stages up to ``last``."""
        self.launch(last)
        while self._under_way:
            under_way, self._under_way = self._under_way, []
            while under_way:
                jobs, wait = under_way.pop(0)
                answers = wait()
                del wait  # with its buffers
                for job in jobs:
                    with suppress(StopIteration):
                        self._waiting.append((job, job.steps.send(answers.pop(0))))
            self.launch(last)


# Collectives


def all_reduce_coalesced(requests: Sequence[AllReduce], group: dist.ProcessGroup) -> Wait:
    """Start one all-reduce for each (real) dtype."""
    tensors = [tensor for request in requests for tensor in request.tensors]
    by_dtype: dict[torch.dtype, list[int]] = {}
    # complex ones first: they can be viewed as such at even places only
    for place in sorted(range(len(tensors)), key=lambda place: not tensors[place].is_complex()):
        by_dtype.setdefault(tensors[place].real.dtype, []).append(place)
    flats = [torch.cat([as_real(tensors[place]).reshape(-1) for place in places]) for places in by_dtype.values()]
    works = [dist.all_reduce(flat, group=group, async_op=True) for flat in flats]

    def wait() -> list[Answer]:
        sums = list(tensors)
        for places, flat, work in zip(by_dtype.values(), flats, works, strict=True):
            if work is not None:
                work.wait()
            sizes = [tensors[place].numel() * (1 + tensors[place].is_complex()) for place in places]
            for place, total in zip(places, torch.split(flat, sizes), strict=True):
                like = tensors[place]
                sums[place] = (torch.view_as_complex(total.view(-1, 2)) if like.is_complex() else total).view_as(like)
        remaining = iter(sums)
        return [[next(remaining) for _ in request.tensors] for request in requests]

    return wait


def all_to_all_coalesced(requests: Sequence[AllToAll], group: dist.ProcessGroup, device: torch.device) -> Wait:
    """Start one all-to-all of bytes, for all dtypes together."""
    world = dist.get_world_size(group)
    going, coming = [0] * world, [0] * world
    for request in requests:
        for sizes, totals in ((request.send, going), (request.expect, coming)):
            for member, size in sizes.items():
                totals[member] += size
    outbox, inbox = (torch.empty(sum(sizes), dtype=torch.uint8, device=device) for sizes in (going, coming))
    for request, starts in zip(requests, _divide([each.send for each in requests], going), strict=True):
        request.pack(outbox, starts)
        del request.pack  # with what it packed
    work = dist.all_to_all_single(inbox, outbox, coming, going, group=group, async_op=True)

    def wait() -> list[Answer]:
        if work is not None:
            work.wait()
        _free(outbox)
        received = _divide([request.expect for request in requests], coming)
        answers = [request.unpack(inbox, starts) for request, starts in zip(requests, received, strict=True)]
        _free(inbox)
        return answers

    return wait


def _divide(sizes: Sequence[Mapping[int, int]], totals: Sequence[int]) -> Iterator[Starts]:
    """Where the bytes of each request begin, by member: members one after another, in each the requests."""
    next_starts = [0, *accumulate(totals)]
    for of_request in sizes:
        yield {member: next_starts[member] for member in of_request}
        for member, size in of_request.items():
            next_starts[member] += size


def _free(buffer: Tensor) -> None:
    """Give memory back now: a thread of gloo lets go of the tensors of a collective some time after it has ended."""
    buffer.untyped_storage().resize_(0)


# Matrices as bytes: one record after another, each all that goes with a matrix. A buffer for some member of a group is
# filled in as many copies as a record has fields; buffers of several members that look alike are filled at once.


class PackedLayout(NamedTuple):
    """Where the fields of a record are.

    Attributes:
        size: bytes of a record.
        fields: of each its dtype and, in units of that, its shape, strides and start.
    """

    size: int
    fields: tuple[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int], ...]

    def views(self, buffer: Tensor, start: int, count: int, members: int = 1, step: int = 0) -> list[Tensor]:
        """The fields (members, count, ...) in the bytes of ``count`` records of each member, as views.

        Args:
            buffer: the bytes.
            start: where those of the first member begin.
            count: how many records each member has.
            members: how many members there are.
            step: how many bytes lie between what one member and the next one has.
        """
        views, typed = [], {dtype: buffer.view(dtype) for dtype in {field[0] for field in self.fields}}
        for dtype, shape, strides, first in self.fields:
            size = dtype.itemsize
            strides = (step // size, self.size // size, *strides)
            views.append(typed[dtype].as_strided((members, count, *shape), strides, start // size + first))
        return views


@lru_cache(maxsize=1024)  # every step sends what the last one did
def packed_layout(*specs: tuple[tuple[int, ...], torch.dtype]) -> PackedLayout:
    """The record of fields: of each its shape for one matrix, and its dtype."""
    fields, end = [], 0
    for shape, dtype in specs:
        start = -(-end // dtype.itemsize)
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        fields.append((dtype, shape, strides, start))
        end = (start + math.prod(shape)) * dtype.itemsize
    return PackedLayout(-(-end // ALIGNMENT) * ALIGNMENT, tuple(fields))


def record_of(tensors: Sequence[Tensor], shape: tuple[int, int] | None = None) -> PackedLayout:
    """The record of fields (B, ...), matrices first; of matrices (B, rows, columns) in pieces of another shape."""
    return packed_layout(*[(shape if shape and each.ndim > 1 else each.shape[1:], each.dtype) for each in tensors])


Ranges = Sequence[tuple[int, int]]
"""For each member of a group a range of matrices, one after another."""


def range_sizes(ranges: Ranges, fields: Sequence[Tensor]) -> dict[int, int]:
    """How many bytes the fields of the matrices of each member take."""
    size = record_of(fields).size
    return {member: (b - a) * size for member, (a, b) in enumerate(ranges) if b > a and size}


def pack_ranges(ranges: Ranges, fields: Sequence[Tensor], buffer: Tensor, starts: Starts) -> None:
    """Write the fields (B, ...) of each member's matrices."""
    for views, (a, b) in _records(ranges, record_of(fields), buffer, starts):
        for view, field in zip(views, fields, strict=True):
            view.copy_(_cut(field, a, b, view.shape))


def pack_copies(ranges: Ranges, fields: Sequence[Tensor], buffer: Tensor, starts: Starts) -> None:
    """Write the fields of all matrices for every member."""
    for member, start in starts.items():
        pack_ranges(ranges, fields, buffer, {member: start})


def unpack_ranges(ranges: Ranges, like: Sequence[Tensor], buffer: Tensor, starts: Starts) -> list[Tensor]:
    """The fields (B, ...) of all matrices, from the members that had them."""
    count = ranges[-1][1]
    fields = [each.new_empty(count, *each.shape[1:]) for each in like]
    for views, (a, b) in _records(ranges, record_of(like), buffer, starts):
        for view, field in zip(views, fields, strict=True):
            _cut(field, a, b, view.shape).copy_(view)
    return fields


def _cut(field: Tensor, a: int, b: int, shape: Sequence[int]) -> Tensor:
    """The matrices from a to b of a field, seen in a shape (members, count, ...)."""
    return torch.unflatten(field if b - a == field.shape[0] else field[a:b], 0, shape[:2])


def _records(
    ranges: Ranges, record: PackedLayout, buffer: Tensor, starts: Starts
) -> Iterator[tuple[list[Tensor], tuple[int, int]]]:
    """The fields (members, count, ...) in a buffer, and the range of matrices: of members that look alike together."""
    sizes = [ranges[member][1] - ranges[member][0] for member in starts]
    for present, step in _alike(starts, sizes):
        (a, b), stop = ranges[present[0]], ranges[present[-1]][1]
        yield record.views(buffer, starts[present[0]], b - a, len(present), step), (a, stop)


def _alike(starts: Starts, sizes: Sequence[Any]) -> Iterator[tuple[list[int], int]]:
    """Stretches of members of one size whose bytes begin in equal steps: the members, and the step."""
    members, places = list(starts), list(starts.values())
    first = 0
    while first < len(members):
        last = first + 1
        step = places[last] - places[first] if last < len(members) else 0
        while last < len(members) and sizes[last] == sizes[first] and places[last] - places[last - 1] == step:
            last += 1
        yield members[first:last], step
        first = last


def piece_sizes(layout: Layout, fields: Sequence[Tensor], count: int) -> dict[int, int]:
    """How many bytes each member's pieces of ``count`` matrices take; ``fields`` tell their dtypes, not shapes."""
    sizes = {shape: count * record_of(fields, shape).size for shape in set(layout.shapes)} if count else {}
    return {member: sizes[shape] for member, shape in enumerate(layout.shapes) if sizes.get(shape)}


def pack_pieces(layout: Layout, fields: Sequence[Tensor], buffer: Tensor, starts: Starts) -> None:
    """Write each member's pieces of matrices (B, p, n), and all of the values (B,)."""
    for views, members in _pieces(layout, fields, buffer, starts):
        for view, field in zip(views, fields, strict=True):
            view.copy_(field if field.ndim == 1 else _at(field, layout, members))


def unpack_pieces(layout: Layout, like: Sequence[Tensor], count: int, buffer: Tensor, starts: Starts) -> list[Tensor]:
    """The fields of ``count`` matrices: whole matrices from their pieces, and the sums of the members' values."""
    fields = [each.new_empty(count, layout.p, layout.n) if each.ndim > 1 else each.new_zeros(count) for each in like]
    for views, members in _pieces(layout, fields, buffer, starts) if count else ():
        for view, field in zip(views, fields, strict=True):
            subscript = _subscript(layout, members[0])
            if field.ndim == 1:
                field.add_(view.sum(0))
            elif any(isinstance(places, Tensor) for places in subscript):
                field[subscript] = view[0]
            else:
                _at(field, layout, members).copy_(view)
    return fields


def _pieces(
    layout: Layout, fields: Sequence[Tensor], buffer: Tensor, starts: Starts
) -> Iterator[tuple[list[Tensor], list[int]]]:
    """The fields (members, B, ...) of pieces in a buffer, and the members: those that look alike together."""
    # members that are not among the even ones have sizes of their own, and stay alone
    sizes = [0 if place < layout.even[1] else 1 + place for place in range(len(starts))]
    for members, step in _alike(starts, sizes):
        record = record_of(fields, layout.shapes[members[0]])
        yield record.views(buffer, starts[members[0]], fields[0].shape[0], len(members), step), members


def _at(matrices: Tensor, layout: Layout, members: Sequence[int]) -> Tensor:
    """The pieces (members, B, rows, columns) of whole matrices: a view, but where places are not consecutive."""
    if len(members) == 1:
        return matrices[_subscript(layout, members[0])].unsqueeze(0)
    dim = layout.even[0]
    width = layout.shapes[0][dim - 1]
    cut = matrices.narrow(dim, members[0] * width, len(members) * width).unfold(dim, width, width)
    return cut.movedim((dim, -1), (0, dim + 1))


def _subscript(layout: Layout, member: int) -> tuple[Index, Index, Index]:
    """Of the pieces of a member, in a batch of matrices."""
    rows, columns = layout.rows[member], layout.columns[member]
    both = isinstance(rows, Tensor) and isinstance(columns, Tensor)
    return slice(None), rows[:, None] if isinstance(rows, Tensor) and both else rows, columns
