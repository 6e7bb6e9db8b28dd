"""Which pieces of its matrices each rank holds, read from the placements of a DTensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise, product
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.parts import Blocks, Part, Side
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


Index = slice | Tensor
"""The places of a piece along one side of a matrix."""


@dataclass(frozen=True, eq=False)
class Layout:
    """How the matrices of a parameter are cut, seen from this rank.

    The ranks that hold pieces of the same matrices as this one form a group; what the other dims of the mesh do to the
    parameter (replicate it, split its batch) needs no communication.

    Attributes:
        p: rows of a matrix, the shorter side.
        n: columns.
        transposed: whether the tensor holds the matrices transposed.
        batch: shape of the batch of which this rank holds pieces.
        ranks: the group, by global rank; this rank alone where the matrices are not cut.
        rows: for each of them, the rows of its pieces.
        columns: for each of them, the columns of its pieces.
    """

    p: int
    n: int
    transposed: bool
    batch: torch.Size
    ranks: tuple[int, ...]
    rows: tuple[Index, ...]
    columns: tuple[Index, ...]

    @cached_property
    def me(self) -> int:
        """The place of this rank in the group."""
        return self.ranks.index(dist.get_rank())

    @cached_property
    def stored(self) -> Layout:
        """The same of the matrices as the tensor holds them: rows are columns, where that is transposed.

        Pieces travel so: to transpose them on the way costs more than all else that is done to them.
        """
        if not self.transposed:
            return self
        return replace(self, p=self.n, n=self.p, transposed=False, rows=self.columns, columns=self.rows)

    @cached_property
    def even(self) -> tuple[int, int]:
        """The side (1 for rows, 2 for columns of a batch) that is cut into equal parts, and for how many members.

        These are the first of the group: as torch cuts, those after them hold the rest, or nothing. (1, 0)
        where there are none: sides cut in strides, or both sides.
        """
        for dim, size, pieces, others in ((1, self.n, self.rows, self.columns), (2, self.p, self.columns, self.rows)):
            part, uncut = length(pieces[0], self.p if dim == 1 else self.n), slice(0, size)
            count = 0
            for piece, other in zip(pieces, others, strict=True):
                if not isinstance(piece, slice) or piece != slice(count * part, (count + 1) * part):
                    break
                if not isinstance(other, slice) or other != uncut:
                    break
                count += 1
            if count > 1 and part * size > 0:
                return dim, count
        return 1, 0

    @cached_property
    def piece_by_columns(self) -> Layout:
        """This rank's rows of matrices whose short side is cut, to be cut again along their columns."""
        world = len(self.ranks)
        cuts = [self.n * i // world for i in range(world + 1)]
        rows = self.shapes[self.me][0]
        columns = tuple(slice(a, b) for a, b in pairwise(cuts))
        return replace(self, p=rows, rows=(slice(0, rows),) * world, columns=columns)

    @cached_property
    def columns_by_rows(self) -> Layout:
        """This rank's columns of :attr:`piece_by_columns`, with all rows: cut as the rows of the matrices are."""
        width = self.piece_by_columns.shapes[self.me][1]
        return replace(self, n=width, columns=(slice(0, width),) * len(self.ranks))

    @cached_property
    def holder(self) -> int | None:
        """The only member that has entries, where there is one: the cut falls between matrices."""
        members = [member for member, (rows, columns) in enumerate(self.shapes) if rows * columns]
        return members[0] if len(members) == 1 else None

    @property
    def cut(self) -> str:
        """Which sides are cut: "none", "rows", "columns" or "both"."""
        rows = any(size != self.p for size, _ in self.shapes)
        columns = any(size != self.n for _, size in self.shapes)
        return "both" if rows and columns else "rows" if rows else "columns" if columns else "none"

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of the pieces of each member of the group."""
        pairs = zip(self.rows, self.columns, strict=True)
        return [(length(rows, self.p), length(columns, self.n)) for rows, columns in pairs]


class Segment(NamedTuple):
    """Matrices of a parameter that are cut in one way.

    Attributes:
        layout: how they are cut.
        blocks: where the pieces of this rank are in its local tensor; None: they are all of it.
    """

    layout: Layout
    blocks: Blocks | None


def length(index: Index, size: int) -> int:
    """How many of ``size`` places there are."""
    return len(range(*index.indices(size))) if isinstance(index, slice) else index.numel()


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
    blocks, entries = _places(param, dim, run.count)[1], _places(param, dim, param.shape[dim])[1]
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


def make_segments(param: DTensor, view: View, side: str) -> list[Segment]:
    """How the matrices of a parameter are cut; those that are cut in one way, and follow each other, together."""
    mesh, shape = param.device_mesh, param.shape
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    dims = view.matrix_dims(param.ndim)
    along = {dim: _places(param, dim, shape[dim]) for dim in dims}
    places: dict[int, dict[int, Tensor]] = {}  # by rank and dim
    cutting = cutting_dims(param, view)
    for point in product(*(range(mesh.size(i)) for i in cutting)):
        at = list(coordinate)
        for i, place in zip(cutting, point, strict=True):
            at[i] = place
        rank = int(mesh.mesh[tuple(at)])
        places[rank] = {dim: parts[tuple(at[i] for i in cut)] for dim, (cut, parts) in along.items()}
    leading = param.to_local().shape[: view.leading_dims(param.ndim)]
    segments: list[Segment] = []
    count = 0
    for part in view.parts(shape, side):
        if part.blocks is None:
            return [Segment(_layout(part, leading, dims, shape, places), None)]
        last: dict[int, Tensor] = {}
        for index in range(part.blocks.count):
            start = part.blocks.start + index * part.blocks.size
            inside = {rank: _within(at[part.blocks.dim], start, part.blocks.size) for rank, at in places.items()}
            if not any(rows.numel() for rows in inside.values()):  # the block is that of other ranks
                continue
            if last and all(torch.equal(last[rank], rows) for rank, rows in inside.items()):
                segments[-1] = _with_one_more(segments[-1])
            else:
                segments.append(_segment(part, leading, dims, shape, places, inside, start, count))
            last = inside
            count += 1
    return segments


def whole_segments(param: Tensor, view: View, side: str) -> list[Segment]:
    """The matrices of a plain parameter, all of which this rank holds."""
    here = (dist.get_rank(),)
    return [
        Segment(
            Layout(part.p, part.n, part.transposed, part.batch, here, (slice(0, part.p),), (slice(0, part.n),)),
            part.blocks,
        )
        for part in view.parts(param.shape, side)
    ]


def _segment(
    part: Part,
    leading: torch.Size,
    dims: tuple[int, ...],
    shape: torch.Size,
    places: dict[int, dict[int, Tensor]],
    inside: dict[int, Tensor],
    start: int,
    first: int,
) -> Segment:
    """One block: ``inside`` are the places of each rank in it, from its ``start`` along the divided dim."""
    assert part.blocks is not None
    dim, size = part.blocks.dim, part.blocks.size
    of_block = {rank: {**at, dim: inside[rank]} for rank, at in places.items()}
    block_shape = torch.Size([*shape[:dim], size, *shape[dim + 1 :]])
    layout = _layout(part, torch.Size([*leading, 1]), dims, block_shape, of_block)
    here = dist.get_rank()
    before = int((places[here][dim] < start).sum())
    return Segment(layout, replace(part.blocks, start=before, size=inside[here].numel(), count=1, first=first))


def _with_one_more(segment: Segment) -> Segment:
    """The segment and the block after it, which is cut in the same way."""
    layout, blocks = segment
    assert blocks is not None
    batch = torch.Size([*layout.batch[:-1], layout.batch[-1] + 1])
    return Segment(replace(layout, batch=batch), replace(blocks, count=blocks.count + 1))


def _within(places: Tensor, start: int, size: int) -> Tensor:
    """Those of some places along a dim that are in a block, counted from its start."""
    return places[(places >= start) & (places < start + size)] - start


def _layout(
    part: Part, batch: torch.Size, dims: tuple[int, ...], shape: torch.Size, places: dict[int, dict[int, Tensor]]
) -> Layout:
    """The layout of matrices whose sides are made of the dims ``dims`` of a tensor of a shape.

    Args:
        part: the matrices.
        batch: the shape of the batch of which this rank holds pieces.
        dims: that of the rows, then those of the columns.
        shape: the shape.
        places: for each rank and dim the places of its pieces.
    """
    sides: dict[int, tuple[Index, Index]] = {}
    for rank, at in places.items():
        columns = reduce(_outer, [(at[dim], shape[dim]) for dim in dims[1:]], _START)[0]
        short, long = (columns, at[dims[0]]) if part.transposed else (at[dims[0]], columns)
        sides[rank] = (_compact(short), _compact(long))
    ranks = tuple(sorted(sides))  # as process groups sort theirs
    rows, columns_of = tuple(sides[rank][0] for rank in ranks), tuple(sides[rank][1] for rank in ranks)
    return Layout(part.p, part.n, part.transposed, batch, ranks, rows, columns_of)


_START = (torch.zeros(1, dtype=torch.int64), 1)


def _outer(left: tuple[Tensor, int], right: tuple[Tensor, int]) -> tuple[Tensor, int]:
    """The places in a flattened dim, from those in the two dims it is made of."""
    (a, _), (b, size) = left, right
    return (a[:, None] * size + b).reshape(-1), size


def _places(param: DTensor, dim: int, length: int) -> tuple[list[int], dict[tuple[int, ...], Tensor]]:
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


def _compact(index: Tensor) -> Index:
    """A slice, where the places are one after another."""
    if index.numel() == 0:
        return slice(0, 0)
    start, stop = int(index[0]), int(index[-1]) + 1
    consecutive = stop - start == index.numel() and bool((index[1:] > index[:-1]).all())
    return slice(start, stop) if consecutive else index


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
