"""Collectives of a step: the requests of many buckets, served together, while other buckets compute.

The step of a bucket whose matrices are cut is a coroutine. It yields a request to the other ranks and is sent the
answer. :func:`run` takes the coroutines of all buckets of a round through their stages together, so that one stage is
one collective, however many parameters there are; and it starts the next round before it computes the present one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.layout import Layout, cutting_dims
from orthoptim.stiefel import as_real
from orthoptim.views import View

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# Stages of a step. Matrices go out, sums are taken, matrices come back, replicas share what they have computed; a
# bucket may leave any of them out.
OUT, SUM, BACK, SHARE = 0, 1, 100, 101

ALIGNMENT = 16
"""Bytes: that of complex128, and a divisor of the size of every record."""


# Requests


@dataclass
class AllReduce:
    """Tensors whose sum over the group is requested; the answer is a list of sums."""

    tensors: list[Tensor]
    stage: int


@dataclass
class AllToAll:
    """Tensors of bytes by member of the group, and the sizes of those expected; the answer is these, by member.

    Members to whom nothing is sent, or of whom nothing is expected, are left out. All sizes are multiples of
    :data:`ALIGNMENT`.
    """

    send: dict[int, list[Tensor]]
    expect: dict[int, list[int]]
    stage: int


Request = AllReduce | AllToAll
Sums = list[Tensor]
Received = dict[int, list[Tensor]]
Answer = Sums | Received
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


def run(rounds: Iterator[Sequence[Job]], overlap: bool = True, ready: Callable[[], None] | None = None) -> None:
    """Run the jobs of all rounds to their end.

    The matrices of round k + 1 travel to their owners while round k computes, and those of round k travel back while
    round k + 1 computes. At most three rounds have buffers: one on its way out, one at work, one on its way back.

    Args:
        rounds: jobs in an order that is the same on all ranks. A round is made when it starts.
        overlap: whether a round starts before the one before it has ended; without, one round has buffers.
        ready: called before the first collective; what it raises ends the step before anything is sent.
    """
    current = _started(rounds)
    if ready is not None:
        ready()
    last = None
    while current is not None:
        current.launch(BACK - 1)
        following = _started(rounds) if overlap else None
        if following is not None:
            following.launch(BACK - 1)
        current.finish(BACK - 1)
        current.launch(BACK)
        if last is not None:
            last.finish(SHARE)
        if not overlap:
            current.finish(SHARE)
            following, current = _started(rounds), None
        last, current = current, following
    if last is not None:
        last.finish(SHARE)


def _started(rounds: Iterator[Sequence[Job]]) -> _Round | None:
    jobs = next(rounds, None)
    return None if jobs is None else _Round(jobs)


class _Round:
    """Jobs that share their collectives: what they wait for, and what is under way."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        # Groups are served in this order, also by ranks that have no part in some of the jobs: no two wait for each
        # other.
        self._order: dict[tuple[dist.ProcessGroup, torch.device], int] = {}
        self._numbers = {job: number for number, job in enumerate(jobs)}
        self._waiting: list[tuple[Job, Request]] = []
        self._under_way: list[tuple[list[Job], Callable[[], Sequence[Answer]]]] = []
        for job in jobs:
            for group in (job.group, job.replicas):
                if group is not None:
                    self._order.setdefault((group, job.device), len(self._order))
            with suppress(StopIteration):
                self._waiting.append((job, next(job.steps)))

    def launch(self, last: int) -> None:
        """Start the collectives of the next stage, if that is not after ``last``."""
        if self._under_way or not self._waiting:
            return
        stage = min(request.stage for _, request in self._waiting)
        if stage > last:
            return
        routes: dict[tuple[dist.ProcessGroup, torch.device], list[tuple[Job, Request]]] = {}
        # in the order of jobs: a rank without a share of a bucket comes to its last stage before the others do
        for job, request in sorted(self._waiting, key=lambda waiting: self._numbers[waiting[0]]):
            if request.stage == stage:
                routes.setdefault((job.group_of(request), job.device), []).append((job, request))
        self._waiting = [(job, request) for job, request in self._waiting if request.stage != stage]
        for (group, device), served in sorted(routes.items(), key=lambda route: self._order[route[0]]):
            jobs, sums, swaps = [job for job, _ in served], [], []
            for _, request in served:
                if isinstance(request, AllReduce):
                    sums.append(request)
                else:
                    swaps.append(request)
            if sums:
                self._under_way.append((jobs, all_reduce_coalesced(sums, group)))
            else:
                self._under_way.append((jobs, all_to_all_coalesced(swaps, group, device)))

    def finish(self, last: int) -> None:
        """Go through all stages up to ``last``."""
        self.launch(last)
        while self._under_way:
            under_way, self._under_way = self._under_way, []
            while under_way:
                jobs, wait = under_way.pop(0)
                answers = dict(zip(jobs, wait(), strict=True))
                del wait  # with its buffers; a job frees what it was sent
                for job in jobs:
                    with suppress(StopIteration):
                        self._waiting.append((job, job.steps.send(answers.pop(job))))
            self.launch(last)


# Collectives


def all_reduce_coalesced(requests: Sequence[AllReduce], group: dist.ProcessGroup) -> Callable[[], list[Sums]]:
    """Start one all-reduce for each (real) dtype; the result waits for the answers."""
    tensors = [(i, tensor) for i, request in enumerate(requests) for tensor in request.tensors]
    by_dtype: dict[torch.dtype, list[int]] = {}
    # complex ones first: they can be viewed as such at even places only
    for place in sorted(range(len(tensors)), key=lambda place: not tensors[place][1].is_complex()):
        by_dtype.setdefault(tensors[place][1].real.dtype, []).append(place)
    under_way = []
    for places in by_dtype.values():
        parts = [as_real(tensors[place][1]).reshape(-1) for place in places]
        flat = torch.cat(parts)
        under_way.append(
            (places, flat, [part.numel() for part in parts], dist.all_reduce(flat, group=group, async_op=True))
        )

    def wait() -> list[Sums]:
        sums: dict[int, Tensor] = {}
        for places, flat, sizes, work in under_way:
            _wait(work)
            for place, total in zip(places, torch.split(flat, sizes), strict=True):
                like = tensors[place][1]
                sums[place] = (torch.view_as_complex(total.view(-1, 2)) if like.is_complex() else total).view(
                    like.shape
                )
        answers: list[Sums] = [[] for _ in requests]
        for place, (i, _) in enumerate(tensors):
            answers[i].append(sums[place])
        return answers

    return wait


def all_to_all_coalesced(
    requests: Sequence[AllToAll], group: dist.ProcessGroup, device: torch.device
) -> Callable[[], list[Received]]:
    """Start one all-to-all of bytes, for all dtypes together; the result waits for the answers."""
    world = dist.get_world_size(group)
    send: list[list[Tensor]] = [[] for _ in range(world)]
    going, coming = [0] * world, [0] * world
    expected: list[list[tuple[int, int]]] = [[] for _ in range(world)]  # request and size
    for number, request in enumerate(requests):
        for member, tensors in request.send.items():
            send[member].extend(tensors)
            going[member] += sum(tensor.shape[0] for tensor in tensors)
        for member, sizes in request.expect.items():
            expected[member].extend((number, size) for size in sizes)
            coming[member] += sum(sizes)
        request.send = {}  # frees its memory once it is copied
    outgoing = [tensor for tensors in send for tensor in tensors]
    outbox = torch.cat(outgoing) if outgoing else torch.empty(0, dtype=torch.uint8, device=device)
    del send, outgoing
    inbox = torch.empty(sum(coming), dtype=torch.uint8, device=device)
    work = dist.all_to_all_single(inbox, outbox, coming, going, group=group, async_op=True)

    def wait() -> list[Received]:
        nonlocal outbox
        _wait(work)
        del outbox
        pieces = iter(torch.split(inbox, [size for sizes in expected for _, size in sizes]))
        answers: list[Received] = [{} for _ in requests]
        for member, sizes in enumerate(expected):
            for number, _ in sizes:
                answers[number].setdefault(member, []).append(next(pieces))
        return answers

    return wait


def concatenated(received: Received, device: torch.device) -> Tensor:
    """The bytes of all members in the order of the group; empties what was received."""
    parts = [part for (part,) in received.values()]
    received.clear()
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=device)


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


# Matrices as bytes: one record after another, each all that goes with a matrix. So what goes to the owners of ranges
# of matrices are stretches of one buffer, filled in as many copies as a record has fields.


class FieldSpec(NamedTuple):
    """What a field looks like: its shape for one matrix, and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class PackedLayout(NamedTuple):
    """Where the fields of a record are.

    Attributes:
        size: bytes of a record.
        fields: of each its dtype and, in units of that, its shape, strides and start.
    """

    size: int
    fields: tuple[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int], ...]

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """The bytes of the records of matrices; a tensor (B, ...) for each field."""
        count = tensors[0].shape[0]
        buffer = torch.empty(count * self.size, dtype=torch.uint8, device=tensors[0].device)
        if count:
            for field, tensor in zip(self.unpack(buffer, count), tensors, strict=True):
                field.copy_(tensor)
        return buffer

    def unpack(self, buffer: Tensor, count: int) -> list[Tensor]:
        """The fields in the bytes of ``count`` records, as views."""
        typed = {dtype: buffer.view(dtype) for dtype in {field[0] for field in self.fields}}
        return [
            typed[dtype].as_strided(
                (count, *shape), (self.size // dtype.itemsize, *strides), typed[dtype].storage_offset() + start
            )
            for dtype, shape, strides, start in self.fields
        ]

    def unpack_all(self, buffer: Tensor, step: int, members: int, count: int) -> list[Tensor]:
        """The fields (members, count, ...) in the bytes of all members, ``step`` bytes apart, as views."""
        fields = []
        for dtype, shape, strides, start in self.fields:
            typed, width = buffer.view(dtype), dtype.itemsize
            strides = (step // width, self.size // width, *strides)
            fields.append(typed.as_strided((members, count, *shape), strides, typed.storage_offset() + start))
        return fields


def equal_steps(buffers: Sequence[Tensor]) -> int | None:
    """How far apart tensors of bytes lie in one buffer; None where that is not the same for all."""
    starts = [int(buffer.storage_offset()) for buffer in buffers]
    if len(starts) < 2:
        return None
    step = starts[1] - starts[0]
    return step if starts == list(range(starts[0], starts[-1] + 1, step)) else None


@lru_cache(maxsize=1024)  # every step sends what the last one did
def packed_layout(*specs: FieldSpec) -> PackedLayout:
    """The record of some fields."""
    fields, end = [], 0
    for shape, dtype in specs:
        start = -(-end // dtype.itemsize)
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        fields.append((dtype, shape, strides, start))
        end = (start + math.prod(shape)) * dtype.itemsize
    return PackedLayout(-(-end // ALIGNMENT) * ALIGNMENT, tuple(fields))


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of the records of matrices: a tensor (B, ...) for each field."""
    return packed_layout(*(FieldSpec(tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors)).pack(tensors)


# Process groups

# Groups that no mesh has are made once, and are gone with the world they are part of.
_world: dist.ProcessGroup | None = None
_made: dict[tuple[int, ...], dist.ProcessGroup] = {}


def process_group(param: DTensor, layout: Layout, view: View) -> dist.ProcessGroup:
    """The group of ranks that hold pieces of the same matrices. All ranks of it must call."""
    global _world
    cutting = cutting_dims(param, view)
    if len(cutting) == 1:
        return param.device_mesh.get_group(cutting[0])
    world = dist.group.WORLD
    assert world is not None
    if _world is not world:
        _made.clear()
        _world = world
    if layout.ranks == tuple(dist.get_process_group_ranks(world)):
        return world
    if layout.ranks not in _made:
        group = dist.new_group(list(layout.ranks), use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        _made[layout.ranks] = group
    return _made[layout.ranks]


def replica_group(param: DTensor) -> dist.ProcessGroup | None:
    """The group of ranks that hold the same pieces, as under HSDP; None where there are none, or along several dims."""
    mesh = param.device_mesh
    dims = [i for i, placement in enumerate(param.placements) if placement.is_replicate() and mesh.size(i) > 1]
    return mesh.get_group(dims[0]) if len(dims) == 1 else None
