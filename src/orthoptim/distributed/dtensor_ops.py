"""Looking at and changing the matrices of a DTensor outside of a step: one parameter after another, gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim import stiefel
from orthoptim.distributed.layout import batch_placements, cutting_dims, local_parts
from orthoptim.distributed.measurements import Measure, largest, measure_sharded
from orthoptim.distributed.torch_dtensor import from_local, replicate
from orthoptim.tensors import compute_dtype
from orthoptim.views import View

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement


def whole_matrices(tensor: DTensor, view: View, side: str) -> list[Tensor]:
    """The matrices (..., p, n) of each part of which this rank holds pieces, whole and in the dtype to compute in."""
    uncut = tensor.redistribute(placements=_uncut(tensor, view))
    local = uncut.to_local().to(compute_dtype(tensor.dtype))
    return [part.matrices(local) for part in local_parts(uncut, view, side)]


def write_matrices_(tensor: DTensor, matrices: Sequence[Tensor], view: View, side: str) -> None:
    """The inverse of :func:`whole_matrices`: every rank takes its pieces."""
    uncut = tensor.redistribute(placements=_uncut(tensor, view))
    local = torch.empty_like(uncut.to_local(), memory_format=torch.contiguous_format)
    for part, x in zip(local_parts(uncut, view, side), matrices, strict=True):
        part.write_(local, x)
    whole = from_local(local, tensor.device_mesh, uncut.placements, shape=tensor.shape, stride=tensor.stride())
    tensor.to_local().copy_(whole.redistribute(placements=tensor.placements).to_local())


def distance(tensor: DTensor, view: View, side: str) -> Tensor:
    """One value per matrix, those of all ranks on all ranks."""
    return measure(tensor, view, side, stiefel.distance)


def measure(tensor: DTensor, view: View, side: str, value_of: Measure) -> Tensor:
    """What ``value_of`` says of each matrix, those of all ranks on all ranks."""
    (values,) = measure_sharded([tensor], view, side, value_of)
    placements = batch_placements(tensor, view)
    if all(placement.is_replicate() for placement in placements):
        return values
    batch = view.batch_shape(tensor.shape)
    stride = torch.empty(batch, device="meta").stride()
    mesh = tensor.device_mesh
    return from_local(values, mesh, placements, shape=batch, stride=stride).full_tensor()


def max_distance(params: Sequence[DTensor], view: View, side: str) -> list[float]:
    """For each parameter the largest distance of its matrices, on any rank."""
    return largest(params, measure_sharded(params, view, side, stiefel.distance))


def spectral_distance(param: DTensor, view: View, side: str) -> float:
    """The largest ‖XXᴴ − I‖₂ of the matrices of a (finite) parameter, on any rank."""
    values = measure_sharded([param], view, side, lambda x: torch.linalg.eigvalsh(stiefel.defect(x)).abs().amax(-1))
    return largest([param], values)[0]


def is_finite(tensor: DTensor) -> bool:
    """Whether all entries on all ranks are."""
    return largest([tensor], [(~torch.isfinite(tensor.to_local())).float()])[0] <= 0


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
        ranks = dist.get_process_group_ranks(mesh.get_group(dim))
        if len(ranks) > 1:
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


def _uncut(tensor: DTensor, view: View) -> list[Placement]:
    cutting = cutting_dims(tensor, view)
    return [replicate() if i in cutting else placement for i, placement in enumerate(tensor.placements)]
