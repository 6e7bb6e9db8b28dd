"""Which pieces of its matrices each rank holds, read from the placements of a DTensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise, product
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.placements import cutting_dims, places_along
from orthoptim.parts import Blocks, Part
from orthoptim.views import View

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


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


def make_segments(param: DTensor, view: View, side: str) -> list[Segment]:
    """How the matrices of a parameter are cut; those that are cut in one way, and follow each other, together."""
    mesh, shape = param.device_mesh, param.shape
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    dims = view.matrix_dims(param.ndim)
    along = {dim: places_along(param, dim, shape[dim]) for dim in dims}
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


def _compact(index: Tensor) -> Index:
    """A slice, where the places are one after another."""
    if index.numel() == 0:
        return slice(0, 0)
    start, stop = int(index[0]), int(index[-1]) + 1
    consecutive = stop - start == index.numel() and bool((index[1:] > index[:-1]).all())
    return slice(start, stop) if consecutive else index
