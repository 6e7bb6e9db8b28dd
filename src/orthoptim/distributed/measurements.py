"""Measuring all matrices of many DTensors with two collectives of a round, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.collectives import BACK, OUT, AllToAll, Job, Steps, run
from orthoptim.distributed.handshake import meshes
from orthoptim.distributed.layout import local_batch, local_parts
from orthoptim.distributed.packing import FieldSpec, by_owner, packed, packed_layout, unpack_all
from orthoptim.distributed.rounds import make_rounds
from orthoptim.distributed.sharded_buckets import ShardedBucket, assemble, make_sharded_buckets
from orthoptim.tensors import compute_dtype, real_dtype
from orthoptim.views import View

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Measure = Callable[[Tensor], Tensor]
"""A real number for each of the matrices (B, p, n)."""


@torch.no_grad()
def measure_sharded(params: Sequence[DTensor], view: View, side: str, measure: Measure) -> list[Tensor]:
    """For each parameter the measure of the matrices of which this rank holds pieces, of its local batch shape."""
    local, cut = make_sharded_buckets(params, view, side, lambda layout: "whole")
    found = [
        torch.empty(local_batch(param, view), dtype=real_dtype(compute_dtype(param.dtype)), device=param.device)
        for param in params
    ]

    def look(pieces: ShardedBucket) -> Steps:
        layout = pieces.layout
        if pieces.count == 0:
            return
        x = pieces.gather([params[i].to_local() for i in pieces.members]).to(pieces.dtype)
        first, last = pieces.owners[layout.me]
        coming = [packed_layout(FieldSpec(shape, x.dtype)) for shape in layout.shapes]
        answer = yield AllToAll(by_owner([x], pieces.owners), [[(last - first) * parts.size] for parts in coming], OUT)
        received = unpack_all(coming, cast(list[list[Tensor]], answer), last - first)
        parts = [fields[0] for fields in received]
        values = measure(assemble(parts, layout.rows, layout.columns, (layout.p, layout.n)))
        of_values = packed_layout(FieldSpec((), values.dtype))
        answer = yield AllToAll(
            [packed([values])] * len(layout.ranks), [[(b - a) * of_values.size] for a, b in pieces.owners], BACK
        )
        (together,) = of_values.unpack(torch.cat([one for (one,) in cast(list[list[Tensor]], answer)]), pieces.count)
        for i, measured in zip(pieces.members, together.reshape(len(pieces.members), -1), strict=True):
            pieces.write_([found[i]], measured)

    checked: set[dist.ProcessGroup] = set()
    for some in make_rounds(cut):
        run([Job(pieces.process_group, pieces.device, look(pieces)) for pieces in some], 0, lambda *_: None, checked)
    for i in local:
        x = params[i].to_local().to(compute_dtype(params[i].dtype))
        for part in local_parts(params[i], view, side):
            values = measure(part.matrices(x).reshape(-1, part.p, part.n))
            part.values(found[i]).copy_(values.view(part.batch))
    return found


def largest(params: Sequence[DTensor], values: Sequence[Tensor]) -> list[float]:
    """For each parameter the largest value on any rank; infinite if one is not finite, -inf if there is none."""
    tops = torch.stack(
        [
            torch.cat([v.double().nan_to_num(nan=torch.inf).reshape(-1), v.new_full((1,), -torch.inf).double()]).max()
            for v in values
        ]
    )
    for mesh in meshes(params):
        for dim in range(mesh.ndim):
            if mesh.size(dim) > 1:
                dist.all_reduce(tops, dist.ReduceOp.MAX, group=mesh.get_group(dim))
    found: list[float] = tops.tolist()
    return found
