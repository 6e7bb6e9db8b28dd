"""The pieces that this rank holds of like matrices, as one batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from orthoptim.distributed.choice import assign
from orthoptim.distributed.layout import Index, Layout, make_layout
from orthoptim.distributed.process_groups import process_group
from orthoptim.engine.buckets import copy_all_
from orthoptim.tensors import compute_dtype


@dataclass(frozen=True, eq=False)
class ShardedBucket:
    """Parameters of one shape, dtype and placement, whose matrices are cut.

    Attributes:
        members: positions in the list of parameters.
        layout: how each is cut.
        process_group: the ranks that hold the other pieces.
        dtype: to compute in.
        half: whether the parameters are stored in less.
        device: where.
        strategy: "whole", "two-phase" or "exchange".
        owners: for "whole", the range of matrices that each rank of the group steps.
        group: index of the param group.
        names: those of the members.
        form: the form of the step.
        blocks: its parts, one for each round.
    """

    members: list[int]
    layout: Layout
    process_group: dist.ProcessGroup
    dtype: torch.dtype
    half: bool
    device: torch.device
    strategy: str
    owners: list[tuple[int, int]]
    group: int = 0
    names: tuple[str, ...] = ()
    form: str = ""
    blocks: list["ShardedBucket"] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many matrices there are pieces of; none, where no rank of the group has a part of the batch."""
        return len(self.members) * self.layout.batch.numel()

    @property
    def counts(self) -> list[int]:
        """For each member, how many matrices it holds."""
        return [self.layout.batch.numel()] * len(self.members)

    @property
    def p(self) -> int:
        """Rows of a matrix, the shorter side."""
        return self.layout.p

    @property
    def n(self) -> int:
        """Columns of a matrix."""
        return self.layout.n

    def pick(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The members' among tensors that belong to all parameters."""
        return [tensors[i] for i in self.members]

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """Local tensors of the members as (B, rows, columns) of the pieces."""
        return self.as_matrices(tensors[0] if len(tensors) == 1 else torch.stack(list(tensors)))

    def as_matrices(self, stack: Tensor) -> Tensor:
        """A stack of such tensors as (B, rows, columns)."""
        stored = self.layout.stored
        return self.turn(stack.resolve_conj().reshape(self.count, *stored.shapes[stored.me]))

    def turn(self, matrices: Tensor) -> Tensor:
        """Matrices (B, p, n) as the parameters hold them, see :attr:`Layout.stored`; and back."""
        return matrices.mT if self.layout.transposed else matrices

    def write_(self, tensors: list[Tensor], matrices: Tensor) -> None:
        """The inverse of :meth:`gather`."""
        copy_all_(tensors, list(self.turn(matrices).reshape(len(tensors), *tensors[0].shape).unbind(0)))


def make_sharded_buckets(
    params: Sequence[DTensor], view: str, side: str, choose: Callable[[Layout], str]
) -> tuple[list[int], list[ShardedBucket]]:
    """Sort parameters into buckets: the places of those whose matrices are not cut, and pieces of the others.

    The owners of those whose strategy is "whole" are still to be chosen, over all buckets there are.
    """
    buckets: dict[Any, list[int]] = {}
    for i, param in enumerate(params):
        key = (param.shape, param.dtype, param.device, param.device_mesh, param.placements)
        buckets.setdefault(key, []).append(i)
    local: list[int] = []
    cut: list[ShardedBucket] = []
    for members in buckets.values():
        param = params[members[0]]
        layout = make_layout(param, view, side)
        strategy = choose(layout)
        if strategy == "local":
            local.extend(members)
            continue
        group = process_group(param, layout, view)
        dtype = compute_dtype(param.dtype)
        cut.append(ShardedBucket(members, layout, group, dtype, dtype != param.dtype, param.device, strategy, []))
    return local, cut


def choose_owners(buckets: Sequence[ShardedBucket]) -> None:
    """Spread the matrices that are sent whole over the ranks of each group."""
    by_group: dict[dist.ProcessGroup, list[ShardedBucket]] = {}
    for pieces in buckets:
        if pieces.strategy == "whole":
            by_group.setdefault(pieces.process_group, []).append(pieces)
    for group, mine in by_group.items():
        costs = [(float(pieces.layout.p**2 * pieces.layout.n), pieces.count) for pieces in mine]
        for pieces, owners in zip(mine, assign(costs, dist.get_world_size(group)), strict=True):
            pieces.owners.extend(owners)


def assemble(
    parts: Sequence[Tensor], rows: Sequence[Index], columns: Sequence[Index], shape: tuple[int, int]
) -> Tensor:
    """Matrices (B, *shape) from their pieces."""
    whole = parts[0].new_empty(parts[0].shape[0], *shape)
    for part, of_rows, of_columns in zip(parts, rows, columns, strict=True):
        if part.numel():
            whole[place(of_rows, of_columns)] = part
    return whole


def cut_out(whole: Tensor, rows: Index, columns: Index) -> Tensor:
    """The inverse of :func:`assemble`, for one piece."""
    return whole[place(rows, columns)]


def place(rows: Index, columns: Index) -> tuple[Index | Tensor, ...]:
    """A subscript of batches of matrices."""
    if isinstance(rows, Tensor) and isinstance(columns, Tensor):
        return slice(None), rows[:, None], columns
    return slice(None), rows, columns
