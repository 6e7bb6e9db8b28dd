"""What goes between ranks: many small wishes, served by few collectives.

The step of a bucket whose matrices are cut is a coroutine. It yields what it wants of the other ranks and is sent the
answer. :func:`run` takes the coroutines of all buckets through their stages together, so that one stage is one
collective, however many parameters there are.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.packing import ALIGNMENT
from orthoptim.stiefel import as_real

# Stages of a step. Matrices go out, sums are taken, matrices come back; a bucket may leave any of them out.
OUT, SUM, BACK = 0, 1, 100

_BITS = 64


@dataclass
class AllReduce:
    """Tensors, the sum of which over the group is wanted; the answer is a list of sums."""

    tensors: list[Tensor]
    stage: int


@dataclass
class AllToAll:
    """Tensors of bytes for each member of the group, and the sizes of those expected; the answer is these, by member.

    All sizes are multiples of :data:`ALIGNMENT`.
    """

    send: list[list[Tensor]]
    expect: list[list[int]]
    stage: int


Request = AllReduce | AllToAll
Answer = list[Tensor] | list[list[Tensor]]
Steps = Generator[Request, Answer, None]


class Job(NamedTuple):
    """The step of one bucket: a coroutine, and the group it talks to."""

    group: dist.ProcessGroup
    device: torch.device
    steps: Steps


def run(
    jobs: Sequence[Job],
    digest: int,
    check: Callable[[dist.ProcessGroup, Tensor], None],
    checked: set[dist.ProcessGroup],
) -> None:
    """Run all jobs to their end.

    Args:
        jobs: in an order that is the same on all ranks.
        digest: 64 bits of what must be the same on all ranks of a group. They ride in its first collective.
        check: is called after that, with a tensor that is true if they are not.
        checked: the groups that have sent it; those that do are added.
    """
    # Groups are served in this order, also by ranks that have no part in some of the jobs: no two wait for each other.
    order: dict[tuple[dist.ProcessGroup, torch.device], int] = {}
    waiting: list[tuple[Job, Request]] = []
    for job in jobs:
        order.setdefault((job.group, job.device), len(order))
        with suppress(StopIteration):
            waiting.append((job, next(job.steps)))
    while waiting:
        stage = min(wish.stage for _, wish in waiting)
        now = [(job, wish) for job, wish in waiting if wish.stage == stage]
        waiting = [(job, wish) for job, wish in waiting if wish.stage != stage]
        routes: dict[tuple[dist.ProcessGroup, torch.device, type[Request]], list[tuple[Job, Request]]] = {}
        for job, wish in now:
            routes.setdefault((job.group, job.device, type(wish)), []).append((job, wish))
        for (group, device, kind), members in sorted(routes.items(), key=lambda route: order[route[0][:2]]):
            first = digest if group not in checked else None
            answers: list[Answer] = []
            if kind is AllReduce:
                sums, differs = all_reduce_coalesced(
                    [w for _, w in members if isinstance(w, AllReduce)], group, device, first
                )
                answers.extend(sums)
            else:
                swaps, differs = all_to_all_coalesced(
                    [w for _, w in members if isinstance(w, AllToAll)], group, device, first
                )
                answers.extend(swaps)
            if differs is not None:
                checked.add(group)
                check(group, differs)
            for (job, _), answer in zip(members, answers, strict=True):
                with suppress(StopIteration):
                    waiting.append((job, job.steps.send(answer)))


def all_reduce_coalesced(
    wishes: Sequence[AllReduce], group: dist.ProcessGroup, device: torch.device, digest: int | None
) -> tuple[list[list[Tensor]], Tensor | None]:
    """One all-reduce for each (real) dtype."""
    answers: list[list[Tensor | None]] = [[None] * len(wish.tensors) for wish in wishes]
    places: dict[torch.dtype, list[tuple[int, int]]] = {}
    for i, wish in enumerate(wishes):
        for j, tensor in enumerate(wish.tensors):
            places.setdefault(tensor.real.dtype, []).append((i, j))
    differs = None
    for dtype, mine in places.items():
        # complex ones first: they can be viewed as such at even places only
        mine.sort(key=lambda place: not wishes[place[0]].tensors[place[1]].is_complex())
        tensors = [wishes[i].tensors[j] for i, j in mine]
        parts = [as_real(tensor).reshape(-1) for tensor in tensors]
        if digest is not None and differs is None:
            parts.append(torch.tensor([digest >> bit & 1 for bit in range(_BITS)], dtype=dtype, device=device))
        flat = torch.cat(parts)
        dist.all_reduce(flat, group=group)
        sums = torch.split(flat, [part.numel() for part in parts])
        for (i, j), tensor, total in zip(mine, tensors, sums, strict=False):
            whole = torch.view_as_complex(total.view(-1, 2)) if tensor.is_complex() else total
            answers[i][j] = whole.view(tensor.shape)
        if digest is not None and differs is None:
            bits = sums[-1]
            differs = ((bits != 0) & (bits != dist.get_world_size(group))).any()
    return answers, differs  # type: ignore[return-value]


def all_to_all_coalesced(
    wishes: Sequence[AllToAll], group: dist.ProcessGroup, device: torch.device, digest: int | None
) -> tuple[list[list[list[Tensor]]], Tensor | None]:
    """One all-to-all of bytes, for all dtypes together."""
    members = range(dist.get_world_size(group))
    send: list[list[Tensor]] = [[] for _ in members]
    expect: list[list[int]] = [[] for _ in members]
    if digest is not None:
        number = torch.tensor([digest - (1 << _BITS - 1), 0], dtype=torch.int64, device=device)
        word = number.view(torch.uint8)
        for member in members:
            send[member].append(word)
            expect[member].append(ALIGNMENT)
    for wish in wishes:
        for member in members:
            send[member].extend(wish.send[member])
            expect[member].extend(wish.expect[member])
        wish.send = []  # to have its memory back
    going = [sum(tensor.shape[0] for tensor in tensors) for tensors in send]
    coming = [sum(sizes) for sizes in expect]
    outbox = torch.cat([tensor for tensors in send for tensor in tensors])
    del send
    inbox = torch.empty(sum(coming), dtype=torch.uint8, device=device)
    dist.all_to_all_single(inbox, outbox, coming, going, group=group)
    arrived = iter(torch.split(inbox, [size for sizes in expect for size in sizes]))
    received = [[next(arrived) for _ in sizes] for sizes in expect]
    differs = None
    if digest is not None:
        words = torch.cat([parts.pop(0) for parts in received])
        differs = (words.view(torch.int64).view(-1, 2) != number).any()
    answers = []
    for wish in wishes:
        counts = [len(sizes) for sizes in wish.expect]
        answers.append([parts[:count] for parts, count in zip(received, counts, strict=True)])
        received = [parts[count:] for parts, count in zip(received, counts, strict=True)]
    return answers, differs
