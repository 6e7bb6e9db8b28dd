"""Measuring and changing the matrices of DTensors outside of a step: each is whole on one rank, its owner.

Two collectives of a round serve all parameters there are. Rounds are a sixteenth of what this rank holds: so their
number does not grow with the model, and what is under way takes less memory than the parameters themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim import stiefel
from orthoptim.distributed.buckets import (
    ROUND_BYTES,
    ShardedBucket,
    from_owners,
    make_rounds,
    make_sharded_buckets,
    share,
    to_owners,
)
from orthoptim.distributed.collectives import Answer, Job, Request, Steps, run
from orthoptim.distributed.handshake import meshes
from orthoptim.distributed.placements import batch_placements, from_local, local_batch, local_parts, replicate
from orthoptim.tensors import compute_dtype, real_dtype
from orthoptim.views import View

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Function = Callable[[Tensor], list[Tensor]]
"""Of matrices (B, p, n): real numbers (B,), as many tensors as there are numbers for a matrix; and, last, matrices to
put in their place, if it is applied to change them."""

_LEAST_ROUND = 1 << 18  # bytes


class Matrices(NamedTuple):
    """A parameter and how it is seen as matrices."""

    param: DTensor
    view: View
    side: str


@torch.no_grad()
def apply(given: Sequence[Matrices], function: Function, numbers: int = 1, writes: bool = False) -> list[list[Tensor]]:
    """Apply a function to every matrix, once on one rank, and write the matrices that it returns.

    Args:
        given: parameters, in the same order on all ranks.
        function: the function.
        numbers: how many numbers it returns for a matrix.
        writes: whether it returns matrices as well.

    Returns:
        For each parameter the numbers of the matrices of which this rank holds pieces, of its local batch shape.
    """
    params = [param for param, _, _ in given]
    found = [
        [
            torch.empty(local_batch(param, view), dtype=real_dtype(compute_dtype(param.dtype)), device=param.device)
            for _ in range(numbers)
        ]
        for param, view, _ in given
    ]
    local, buckets = _sort(given)
    locals_ = [param.to_local() for param in params]
    held = sum(tensor.nbytes for tensor in locals_)
    round_bytes = min(ROUND_BYTES, max(_LEAST_ROUND, held // 16))

    def steps(bucket: ShardedBucket) -> Steps:
        if bucket.count == 0:
            return
        tensors = bucket.members_of(locals_)
        results = yield from _by_owners(bucket, tensors, function, numbers, writes)
        for k, values in enumerate(results[:numbers]):
            bucket.write_(bucket.members_of([of_param[k] for of_param in found], per_matrix=True), values)
        for new in results[numbers:]:
            bucket.write_(tensors, new if bucket.scale == 1 else new * bucket.scale)

    def jobs(parts: Sequence[ShardedBucket]) -> list[Job]:
        return [Job(part.process_group, part.device, steps(part), part.replicas) for part in parts]

    run(map(jobs, make_rounds(buckets, round_bytes)), overlap=False)
    for i in local:
        param, view, side = given[i]
        for part in local_parts(param, view, side):
            x = part.matrices(param.to_local().to(compute_dtype(param.dtype))).reshape(-1, part.p, part.n)
            blocks = [
                function(block) for block in torch.split(x, max(1, round_bytes // (part.p * part.n * x.itemsize)))
            ]
            results = [torch.cat(tensors) for tensors in zip(*blocks, strict=True)]
            for target, values in zip(found[i], results, strict=False):
                part.values(target).copy_(values.view(part.batch))
            for new in results[numbers:]:
                part.write_(param.to_local(), new.view(*part.batch, part.p, part.n))
    return found


def _sort(given: Sequence[Matrices]) -> tuple[list[int], list[ShardedBucket]]:
    """The places of parameters whose matrices are whole on this rank, and buckets of the others."""
    together: dict[tuple[View, str], list[int]] = {}
    for i, (_, view, side) in enumerate(given):
        together.setdefault((view, side), []).append(i)
    local: list[int] = []
    buckets: list[ShardedBucket] = []
    for (view, side), places in together.items():
        whole, pieces = make_sharded_buckets([given[i].param for i in places], view, side, lambda layout: "whole")
        local.extend(places[i] for i in whole)
        buckets.extend(replace(bucket, members=[places[i] for i in bucket.members]) for bucket in pieces)
    return sorted(local), buckets


def _by_owners(
    bucket: ShardedBucket, tensors: Sequence[Tensor], function: Function, numbers: int, writes: bool
) -> Generator[Request, Answer, Answer]:
    """Send pieces to the owners of their matrices, who apply the function and send back what it returns."""
    turn, rows = bucket.turn, tuple(bucket.layout.stored.shapes[bucket.layout.me])
    empty = torch.empty(0, dtype=bucket.dtype, device=bucket.device)
    # what comes back: matrices first, as records have them
    like = [*([empty.new_empty(0, *rows)] if writes else []), *[empty.real] * numbers]

    def compute(fields: list[Tensor]) -> list[Tensor]:
        whole = turn(fields.pop())
        results = function(whole) if whole.shape[0] else []
        return [*map(turn, results[numbers:]), *results[:numbers]]

    first, last = bucket.share
    results: list[Tensor] = []
    if last > first:
        # given away here, so that its memory is free once it is packed
        fields = yield from to_owners(bucket, [turn(_unscaled(bucket, tensors))[first:last]])
        results = yield from from_owners(bucket, compute(fields), like)
    if bucket.replicas is not None:
        results = yield from share(bucket, results, like)
    return [*results[int(writes) :], *map(turn, results[: int(writes)])]


def _unscaled(bucket: ShardedBucket, tensors: Sequence[Tensor]) -> Tensor:
    """The pieces of the matrices, without the scale of the parameters."""
    x = bucket.gather(tensors).to(bucket.dtype)
    return x if bucket.scale == 1 else x / bucket.scale


def largest(params: Sequence[DTensor], values: Sequence[Tensor]) -> list[float]:
    """For each parameter the largest value on any rank; infinite if one is not finite, -inf if there is none."""
    tops = torch.stack(
        [
            torch.cat([v.double().nan_to_num(torch.inf, torch.inf).reshape(-1), v.new_full((1,), -torch.inf).double()])
            .max()
            .to(values[0].device)
            for v in values
        ]
    )
    for mesh in meshes(params):
        for dim in range(mesh.ndim):
            if mesh.size(dim) > 1:
                dist.all_reduce(tops, dist.ReduceOp.MAX, group=mesh.get_group(dim))
    found: list[float] = tops.tolist()
    return found


def on_all_ranks(values: Tensor, tensor: DTensor, view: View) -> Tensor:
    """Values of the matrices of which each rank holds pieces, as those of all matrices on all ranks."""
    placements = batch_placements(tensor, view)
    if all(placement.is_replicate() for placement in placements):
        return values
    batch = view.batch_shape(tensor.shape)
    stride = torch.empty(batch, device="meta").stride()
    return from_local(values, tensor.device_mesh, placements, shape=batch, stride=stride).full_tensor()


def is_finite(tensor: DTensor) -> bool:
    """Whether all entries on all ranks are."""
    return largest([tensor], [(~torch.isfinite(tensor.to_local())).float()])[0] <= 0


def sum_over_ranks(given: Sequence[Matrices], values: Tensor) -> Tensor:
    """Sum what ranks know of parameters, a row for each, such that every matrix counts once: one all-reduce a dim."""
    values = values.clone()
    for mesh in meshes([param for param, _, _ in given]):
        coordinate = mesh.get_coordinate()
        assert coordinate is not None
        rows = [row for row, (param, _, _) in enumerate(given) if param.device_mesh == mesh]
        placements = [batch_placements(given[row].param, given[row].view) for row in rows]
        for dim in range(mesh.ndim):
            if mesh.size(dim) == 1:
                continue
            # the first rank along a dim speaks for those that hold the same matrices
            speaks = [coordinate[dim] == 0 or not of_param[dim].is_replicate() for of_param in placements]
            part = values[rows] * torch.tensor(speaks, dtype=values.dtype, device=values.device)[:, None]
            dist.all_reduce(part, group=mesh.get_group(dim))
            values[rows] = part
    return values


def randomize_(tensor: DTensor, view: View, side: str, generator: torch.Generator | None) -> None:
    """Uniformly random matrices, in place: those that the first rank of the mesh would draw alone."""
    dtype, device = compute_dtype(tensor.dtype), tensor.device
    drawn = [
        stiefel.random(*part.batch, part.p, part.n, dtype=dtype, device=device, generator=generator)
        for part in view.parts(tensor.shape, side)
    ]
    full = view.from_matrices(drawn, tensor.shape, side).to(tensor.dtype).contiguous()
    mesh = tensor.device_mesh
    for dim in range(mesh.ndim):
        if mesh.size(dim) > 1:
            dist.broadcast(full, _first(tensor, dim), group=mesh.get_group(dim))
    everywhere = from_local(full, mesh, [replicate()] * mesh.ndim)
    tensor.to_local().copy_(everywhere.redistribute(placements=tensor.placements).to_local())


def _first(tensor: DTensor, dim: int) -> int:
    """The first rank of this rank's line along a dim of the mesh."""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    at = list(coordinate)
    at[dim] = 0
    return int(mesh.mesh[tuple(at)])
