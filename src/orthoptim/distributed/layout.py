"""Which pieces of its matrices each rank holds, read from the placements of a DTensor."""

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import product
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from orthoptim.views import matrix_shape

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
    def stored(self) -> "Layout":
        """The same of the matrices as the tensor holds them: rows are columns, where that is transposed.

        ShardedBucket travel so: to transpose them on the way costs more than all else that is done to them.
        """
        if not self.transposed:
            return self
        return replace(self, p=self.n, n=self.p, transposed=False, rows=self.columns, columns=self.rows)

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


def length(index: Index, size: int) -> int:
    """How many of ``size`` places there are."""
    return len(range(*index.indices(size))) if isinstance(index, slice) else index.numel()


def first_matrix_dim(ndim: int, view: str) -> int:
    """The first dim of a tensor that is not of its batch."""
    return 0 if view == "filters" else ndim - 2


def sharded_dim(placement: Placement) -> int | None:
    """The dim of the tensor that a placement cuts, evenly or in strides."""
    # torch's own placement for cuts in strides is a Shard in some versions, and not in others
    cuts = isinstance(placement, Shard) or hasattr(placement, "split_factor")
    return int(cast(Shard, placement).dim) if cuts else None


def cutting_dims(param: DTensor, view: str) -> list[int]:
    """The dims of the mesh along which matrices are cut."""
    first = first_matrix_dim(param.ndim, view)
    mesh = param.device_mesh
    dims = [sharded_dim(placement) for placement in param.placements]
    return [i for i, dim in enumerate(dims) if dim is not None and dim >= first and mesh.size(i) > 1]


def batch_placements(param: DTensor, view: str) -> list[Placement]:
    """The placements of a tensor with one value for each matrix of the parameter."""
    first = first_matrix_dim(param.ndim, view)
    dims = [sharded_dim(placement) for placement in param.placements]
    return [
        placement if dim is not None and dim < first else Replicate()
        for placement, dim in zip(param.placements, dims, strict=True)
    ]


def make_layout(param: DTensor, view: str, side: str) -> Layout:
    """The layout of a parameter.

    Raises:
        ValueError: for placements that are neither replicated nor sharded.
    """
    mesh, placements = param.device_mesh, param.placements
    if any(isinstance(placement, Partial) for placement in placements):
        raise ValueError(f"has placements {placements}: a parameter that is a pending sum cannot be orthogonal")
    _, p, n, transposed = matrix_shape(param.shape, view, side)
    first = first_matrix_dim(param.ndim, view)
    batch = param.to_local().shape[:first]
    cutting = cutting_dims(param, view)
    coordinate = mesh.get_coordinate()
    if coordinate is None or not cutting:
        return Layout(p, n, transposed, batch, (dist.get_rank(),), (slice(0, p),), (slice(0, n),))
    places: dict[int, tuple[Index, Index]] = {}
    along = {dim: _places(param, dim) for dim in range(first, param.ndim)}
    for point in product(*(range(mesh.size(i)) for i in cutting)):
        at = list(coordinate)
        for i, place in zip(cutting, point, strict=True):
            at[i] = place
        sides = [parts[tuple(at[i] for i in dims)] for dims, parts in along.values()]
        rows, columns = sides[0], reduce(_outer, zip(sides[1:], param.shape[first + 1 :], strict=True), _START)[0]
        short, long = (columns, rows) if transposed else (rows, columns)
        places[int(mesh.mesh[tuple(at)])] = (_compact(short), _compact(long))
    ranks = tuple(sorted(places))  # as process groups sort theirs
    return Layout(
        p, n, transposed, batch, ranks, tuple(places[r][0] for r in ranks), tuple(places[r][1] for r in ranks)
    )


_START = (torch.zeros(1, dtype=torch.int64), 1)


def _outer(left: tuple[Tensor, int], right: tuple[Tensor, int]) -> tuple[Tensor, int]:
    """The places in a flattened dim, from those in the two dims it is made of."""
    (a, _), (b, size) = left, right
    return (a[:, None] * size + b).reshape(-1), size


def _places(param: DTensor, dim: int) -> tuple[list[int], dict[tuple[int, ...], Tensor]]:
    """The dims of the mesh that cut a dim of the tensor, and the places along it by the coordinates in them."""
    parts: dict[tuple[int, ...], Tensor] = {(): torch.arange(param.shape[dim])}
    dims = [i for i, placement in enumerate(param.placements) if sharded_dim(placement) == dim]
    for i in dims:
        placement = param.placements[i]
        strides = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
        cut = cast(type[Shard], type(placement))(0, **strides)
        count = param.device_mesh.size(i)
        parts = {
            (*key, place): part
            for key, whole in parts.items()
            for place, part in enumerate(cut._split_tensor(whole, count, with_padding=False)[0])
        }
    return dims, parts


def _compact(index: Tensor) -> Index:
    """A slice, where the places are one after another."""
    if index.numel() == 0:
        return slice(0, 0)
    start, stop = int(index[0]), int(index[-1]) + 1
    consecutive = stop - start == index.numel() and bool((index[1:] > index[:-1]).all())
    return slice(start, stop) if consecutive else index
