"""Looking at and changing the matrices of a DTensor outside of a step: one parameter after another, gathered."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate

from orthoptim import stiefel
from orthoptim.distributed.layout import batch_placements, cutting_dims
from orthoptim.distributed.measurements import Measure, largest, measure_sharded
from orthoptim.tensors import compute_dtype
from orthoptim.views import from_matrices, matrix_shape


def whole_matrices(tensor: DTensor, view: str, side: str) -> Tensor:
    """The matrices (..., p, n) of which this rank holds pieces, whole and in the dtype to compute in."""
    _, p, n, transposed = matrix_shape(tensor.shape, view, side)
    local: Tensor = tensor.redistribute(placements=_uncut(tensor, view)).to_local()
    batch = local.shape[: len(matrix_shape(tensor.shape, view, side)[0])]
    matrices = local.reshape(*batch, n, p).mT if transposed else local.reshape(*batch, p, n)
    return matrices.to(compute_dtype(tensor.dtype))


def write_matrices_(tensor: DTensor, matrices: Tensor, view: str, side: str) -> None:
    """The inverse of :func:`whole_matrices`: every rank takes its pieces."""
    transposed = matrix_shape(tensor.shape, view, side)[3]
    first = len(matrix_shape(tensor.shape, view, side)[0])
    shape = (*matrices.shape[:first], *tensor.shape[first:])
    local = (matrices.mT if transposed else matrices).reshape(shape).to(tensor.dtype)
    whole = DTensor.from_local(
        local, tensor.device_mesh, _uncut(tensor, view), run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    tensor.to_local().copy_(whole.redistribute(placements=tensor.placements).to_local())


def distance(tensor: DTensor, view: str, side: str) -> Tensor:
    """One value per matrix, those of all ranks on all ranks."""
    return measure(tensor, view, side, stiefel.distance)


def measure(tensor: DTensor, view: str, side: str, value_of: Measure) -> Tensor:
    """What ``value_of`` says of each matrix, those of all ranks on all ranks."""
    (values,) = measure_sharded([tensor], view, side, value_of)
    placements = batch_placements(tensor, view)
    if all(isinstance(placement, Replicate) for placement in placements):
        return values
    batch = matrix_shape(tensor.shape, view, side)[0]
    stride = torch.empty(batch, device="meta").stride()
    mesh = tensor.device_mesh
    return DTensor.from_local(values, mesh, placements, run_check=False, shape=batch, stride=stride).full_tensor()


def max_distance(params: Sequence[DTensor], view: str, side: str) -> list[float]:
    """For each parameter the largest distance of its matrices, on any rank."""
    return largest(params, measure_sharded(params, view, side, stiefel.distance))


def spectral_distance(param: DTensor, view: str, side: str) -> float:
    """The largest ‖XXᴴ − I‖₂ of the matrices of a (finite) parameter, on any rank."""
    values = measure_sharded([param], view, side, lambda x: torch.linalg.eigvalsh(stiefel.defect(x)).abs().amax(-1))
    return largest([param], values)[0]


def is_cut(tensor: DTensor, view: str) -> bool:
    """Whether its matrices lie on several ranks."""
    return bool(cutting_dims(tensor, view))


def is_finite(tensor: DTensor) -> bool:
    """Whether all entries on all ranks are."""
    return largest([tensor], [(~torch.isfinite(tensor.to_local())).float()])[0] <= 0


def randomize_(tensor: DTensor, view: str, side: str, generator: torch.Generator | None) -> None:
    """Uniformly random matrices, in place: those that the first rank of the mesh would draw alone."""
    batch, p, n, _ = matrix_shape(tensor.shape, view, side)
    dtype, device = compute_dtype(tensor.dtype), tensor.device
    drawn = stiefel.random(*batch, p, n, dtype=dtype, device=device, generator=generator)
    full = from_matrices(drawn, tensor.shape, view, side).to(tensor.dtype).contiguous()
    mesh = tensor.device_mesh
    for dim in range(mesh.ndim):
        ranks = dist.get_process_group_ranks(mesh.get_group(dim))
        if len(ranks) > 1:
            dist.broadcast(full, _first(tensor, dim), group=mesh.get_group(dim))
    everywhere = DTensor.from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
    tensor.to_local().copy_(everywhere.redistribute(placements=tensor.placements).to_local())


def _first(tensor: DTensor, dim: int) -> int:
    """The first rank of this rank's line along a dim of the mesh."""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    at = list(coordinate)
    at[dim] = 0
    return int(mesh.mesh[tuple(at)])


def _uncut(tensor: DTensor, view: str) -> list[Placement]:
    cutting = cutting_dims(tensor, view)
    return [Replicate() if i in cutting else placement for i, placement in enumerate(tensor.placements)]
