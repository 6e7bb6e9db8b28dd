"""Placements of DTensors: which dims of the mesh cut matrices or between them, and who holds the same pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.parts import Part, Side
from orthoptim.views import View, ViewLike

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement, Replicate, Shard


def from_local(
    local: Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: torch.Size | None = None,
    stride: tuple[int, ...] | None = None,
) -> DTensor:
    """A DTensor of what each rank holds; no rank sends anything."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def distribute(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """A DTensor of a tensor that is the same on all ranks; no rank sends anything."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def replicate() -> Replicate:
    """The placement of a tensor that every rank holds."""
    from torch.distributed.tensor import Replicate

    return Replicate()


def shard(dim: int) -> Shard:
    """The placement of a tensor that is cut along a dim."""
    from torch.distributed.tensor import Shard

    return Shard(dim)


def sharded_dim(placement: Placement) -> int | None:
    """The dim of the tensor that a placement cuts, evenly or in strides."""
    # torch's own placement for cuts in strides is a Shard in some versions, and not in others
    cuts = placement.is_shard() or hasattr(placement, "split_factor")
    return int(cast("Shard", placement).dim) if cuts else None


def cutting_dims(param: DTensor, view: View) -> list[int]:
    """The dims of the mesh along which matrices are cut."""
    mesh, uncut = param.device_mesh, _batch_dims(param, view)
    dims = [sharded_dim(placement) for placement in param.placements]
    return [i for i, dim in enumerate(dims) if dim is not None and dim not in uncut and mesh.size(i) > 1]


def is_cut(param: DTensor, view: View) -> bool:
    """Whether matrices lie on several ranks.

    Raises:
        ValueError: for placements that are neither replicated nor sharded.
    """
    if any(placement.is_partial() for placement in param.placements):
        raise ValueError(f"has placements {param.placements}: a parameter that is a pending sum cannot be orthogonal")
    return bool(cutting_dims(param, view)) and param.device_mesh.get_coordinate() is not None


def check_backend(param: DTensor, view: View) -> None:
    """Refuse a parameter on a device that the ranks which share its matrices cannot send from.

    Raises:
        ValueError: such as for parameters that are offloaded to the CPU, on a mesh that has only NCCL.
    """
    if not is_cut(param, view):
        return
    device = param.to_local().device
    for dim in cutting_dims(param, view):
        served = param.device_mesh.get_group(dim)._device_types
        if device.type != "meta" and torch.device(device.type) not in served:
            known = ", ".join(each.type for each in served)
            raise ValueError(
                f"lies on {device.type}, but the process group of its mesh serves {known} alone, and its matrices are "
                'cut: initialise both, as init_process_group("cpu:gloo,cuda:nccl") does, or do not offload it'
            )


def batch_placements(param: DTensor, view: View) -> list[Placement]:
    """The placements of a tensor with one value for each matrix of the parameter."""
    batch = _batch_dims(param, view)
    dims = [sharded_dim(placement) for placement in param.placements]
    return [
        _cut_of(placement, batch[dim]) if dim is not None and dim in batch else replicate()
        for placement, dim in zip(param.placements, dims, strict=True)
    ]


def _batch_dims(param: DTensor, view: View) -> dict[int, int]:
    """The dims of the tensor that are cut between matrices, if at all, with the dims of the batch that they become."""
    first = view.leading_dims(param.ndim)
    dims = {dim: dim for dim in range(first)}
    return {**dims, view.divided_dim(param.ndim): first} if _is_cut_between_blocks(param, view) else dims


def _is_cut_between_blocks(param: DTensor, view: View) -> bool:
    """Whether the dim that a view divides is cut between blocks, as a vector with an entry for each block would be."""
    if not view.is_divided:
        return False
    (run, *others), dim = view.runs(param.shape), view.divided_dim(param.ndim)
    if others:  # blocks of several sizes
        return False
    blocks, entries = places_along(param, dim, run.count)[1], places_along(param, dim, param.shape[dim])[1]
    offsets = torch.arange(run.size)
    return all(torch.equal((blocks[at][:, None] * run.size + offsets).reshape(-1), entries[at]) for at in entries)


def local_batch(param: DTensor, view: View) -> torch.Size:
    """The shape of a tensor with one value for each matrix of which this rank holds pieces."""
    shape = param.to_local().shape
    leading = shape[: view.leading_dims(param.ndim)]
    if not view.is_divided:
        return leading
    runs = view.runs(param.shape)
    if _is_cut_between_blocks(param, view):
        return torch.Size([*leading, shape[runs[0].dim] // runs[0].size])
    return torch.Size([*leading, sum(run.count for run in runs)])


def local_view(param: DTensor, view: View) -> View:
    """The view of the local tensor of a parameter whose matrices are not cut, and of which this rank holds some."""
    if not view.is_divided:
        return view
    run, local = view.runs(param.shape)[0], param.to_local().shape[view.divided_dim(param.ndim)]
    return view if local == param.shape[run.dim] else view.of_blocks(local // run.size)


def local_parts(param: DTensor, view: View, side: str) -> tuple[Part, ...]:
    """The matrices in the local tensor of a parameter whose matrices are not cut; none, where it is empty."""
    if view.is_divided and param.to_local().numel() == 0:
        return ()
    return local_view(param, view).parts(param.to_local().shape, side)


def places_along(param: DTensor, dim: int, length: int) -> tuple[list[int], dict[tuple[int, ...], Tensor]]:
    """The dims of the mesh that cut a dim of the tensor, and the places along it by the coordinates in them.

    Args:
        param: the tensor.
        dim: the dim.
        length: how many places there are along it.
    """
    parts: dict[tuple[int, ...], Tensor] = {(): torch.arange(length)}
    dims = [i for i, placement in enumerate(param.placements) if sharded_dim(placement) == dim]
    for i in dims:
        cut, count = _cut_of(param.placements[i], 0), param.device_mesh.size(i)
        parts = {
            (*key, place): part
            for key, whole in parts.items()
            for place, part in enumerate(cut._split_tensor(whole, count, with_padding=False)[0])
        }
    return dims, parts


def _cut_of(placement: Placement, dim: int) -> Shard:
    """The same cut along another dim."""
    strides = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
    return cast("type[Shard]", type(placement))(dim, **strides)


# Groups that no mesh has are made once, and are gone with the world they are part of.
_world: dist.ProcessGroup | None = None
_made: dict[tuple[int, ...], dist.ProcessGroup] = {}


def process_group(param: DTensor, ranks: tuple[int, ...], view: View) -> dist.ProcessGroup:
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
    if ranks == tuple(dist.get_process_group_ranks(world)):
        return world
    if ranks not in _made:
        group = dist.new_group(list(ranks), use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        _made[ranks] = group
    return _made[ranks]


def replica_group(param: DTensor) -> dist.ProcessGroup | None:
    """The group of ranks that hold the same pieces, as under HSDP; None where there are none, or along several dims."""
    mesh = param.device_mesh
    dims = [i for i, placement in enumerate(param.placements) if placement.is_replicate() and mesh.size(i) > 1]
    return mesh.get_group(dims[0]) if len(dims) == 1 else None


def long_dim_placement(
    param: Tensor, *, view: ViewLike = "matrix", side: Side = "auto", world_size: int | None = None
) -> Shard | None:
    """The placement with the least communication, for ``fully_shard(..., shard_placement_fn=long_dim_placement)``.

    Batches of at least ``world_size`` matrices are split between them, so that every matrix is whole on some rank; else
    the long side of the matrices is cut. FSDP2 cuts a dim other than the first only into equal parts: where it cannot,
    and for what is no matrix, the answer is None, FSDP2's own choice (the first dim).

    Args:
        param: a parameter, not yet sharded.
        view: how the orthoptimizer will see it; for other views than "matrix" use ``functools.partial``.
        side: its orthonormal side.
        world_size: into how many parts it will be cut; by default the number of all ranks.

    Example:
        >>> import torch
        >>> [long_dim_placement(torch.empty(shape), world_size=4) for shape in [(64, 512), (512, 64), (8, 3, 3)]]
        [Shard(dim=1), Shard(dim=0), Shard(dim=0)]
        >>> long_dim_placement(torch.empty(64, 511), world_size=4) is None
        True
    """
    seen = View.of(view)
    if param.ndim < 2 or (seen.name == "kernels" and param.ndim < 3):
        return None
    world = dist.get_world_size() if world_size is None else world_size
    part, *others = seen.parts(param.shape, side)
    leading = seen.leading_dims(param.ndim)
    if leading and part.batch.numel() > 1 and part.batch[0] >= world:
        return shard(0)
    if part.blocks is not None and not others and part.blocks.count % world == 0:  # blocks of one size
        return shard(part.blocks.dim)
    rows, *columns = seen.matrix_dims(param.ndim)
    dim = rows if part.transposed else columns[0]
    return shard(dim) if dim == 0 or param.shape[dim] % world == 0 else None
