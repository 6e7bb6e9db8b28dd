"""Rounds: how much of the matrices that are cut is under way at a time.

All that is under way shares its collectives, and takes about ten times its size in buffers, copies and temporaries. So
a step is cut into rounds by bytes, whatever the number of parameters; small models take one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch.distributed as dist

from orthoptim.distributed.sharded_buckets import ShardedBucket, choose_owners

ROUND_BYTES = 1 << 28
"""Of a round, for each rank: with what is made of them, some 2.5 GB beside the state."""


def make_rounds(buckets: Sequence[ShardedBucket]) -> list[list[ShardedBucket]]:
    """Buckets in parts, by rounds, with the owners of those that are sent whole.

    The first round of every group is the first of all: what is wrong is found there, before anything is changed.
    """
    by_group: dict[dist.ProcessGroup, list[ShardedBucket]] = {}
    for pieces in buckets:
        by_group.setdefault(pieces.process_group, []).append(pieces)
    rounds: list[list[ShardedBucket]] = []
    for group, mine in by_group.items():
        for index, some in enumerate(_fill(mine, dist.get_world_size(group))):
            if index == len(rounds):
                rounds.append([])
            rounds[index].extend(some)
    for some in rounds:
        choose_owners(some)
    return rounds


def _fill(buckets: Iterable[ShardedBucket], world: int) -> list[list[ShardedBucket]]:
    """The rounds of one group, the largest matrices first.

    There is room for as many matrices as there are ranks, however large they are: with fewer, ranks would idle.
    """
    ordered = sorted(buckets, key=_matrix_bytes, reverse=True)  # stable: the same on every rank
    room = world * max(ROUND_BYTES, _matrix_bytes(ordered[0]))
    rounds: list[list[ShardedBucket]] = [[]]
    left = room
    for pieces in ordered:
        size = _matrix_bytes(pieces) * pieces.layout.batch.numel()
        todo = pieces.members
        while todo:
            fit = len(todo) if size == 0 else min(len(todo), left // size)
            if world < fit < len(todo):  # the same number for each rank
                fit -= fit % world
            if fit or not rounds[-1]:
                fit = max(1, fit)  # a parameter is not divided
                rounds[-1].append(replace(pieces, members=todo[:fit], owners=[]))
                left -= fit * size
                todo = todo[fit:]
            if todo:
                rounds.append([])
                left = room
    return rounds


def _matrix_bytes(pieces: ShardedBucket) -> int:
    return pieces.layout.p * pieces.layout.n * pieces.dtype.itemsize
