"""The pieces that this rank holds of like matrices, as one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.choice import assign
from orthoptim.distributed.layout import Index, Layout, is_cut, make_segments
from orthoptim.distributed.process_groups import process_group
from orthoptim.engine.blocks import copy_all_
from orthoptim.tensors import compute_dtype
from orthoptim.views import Blocks, View

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


ALONE_BYTES = 8 << 20
"""The size of a parameter, all ranks together, from which it is a bucket of its own."""


@dataclass(frozen=True, eq=False)
class ShardedBucket:
    """Parameters of one shape, dtype and placement, whose matrices are cut; or matrices of one that a view divides.

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
        region: where the pieces are in the local tensor of a parameter that a view divides.
        counts_steps: whether its step counts as one of its parameters: not if other matrices of these have counted it.
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
    blocks: list[ShardedBucket] = field(default_factory=list)
    region: Blocks | None = None
    counts_steps: bool = True

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
        stored = self.layout.stored
        pieces = self._stacked(self._entries(tensors))
        return self.turn(pieces.resolve_conj().reshape(self.count, *stored.shapes[stored.me]))

    def gather_values(self, tensors: Sequence[Tensor]) -> Tensor:
        """Local tensors of the members that have a value for each matrix as (B,)."""
        return self._stacked(self._values(tensors)).reshape(-1)

    def write_(self, tensors: Sequence[Tensor], new: Tensor) -> None:
        """The inverse of :meth:`gather`, or of :meth:`gather_values` where ``new`` is (B,)."""
        targets = self._values(tensors) if new.ndim == 1 else self._entries(tensors)
        new = new if new.ndim == 1 else self.turn(new)
        copy_all_(targets, list(new.reshape(len(targets), *targets[0].shape).unbind(0)))

    def turn(self, matrices: Tensor) -> Tensor:
        """Matrices (B, p, n) as the parameters hold them, see :attr:`Layout.stored`; and back."""
        return matrices.mT if self.layout.transposed else matrices

    def _entries(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors) if self.region is None else [self.region.entries(tensor) for tensor in tensors]

    def _values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors) if self.region is None else [self.region.values(tensor) for tensor in tensors]

    @staticmethod
    def _stacked(tensors: list[Tensor]) -> Tensor:
        return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


def make_sharded_buckets(
    params: Sequence[DTensor], view: View, side: str, choose: Callable[[Layout], str]
) -> tuple[list[int], list[ShardedBucket]]:
    """Sort parameters into buckets: the places of those whose matrices are not cut, and pieces of the others.

    A parameter that a view divides has buckets of its own, one for each way in which its matrices are cut. So does a
    large one: a bucket of several is stacked, which takes memory. Buckets share their collectives anyway.

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
        if not is_cut(param, view):
            local.extend(members)
            continue
        dtype = compute_dtype(param.dtype)
        half = dtype != param.dtype
        alone = view.is_divided or param.numel() * dtype.itemsize >= ALONE_BYTES
        for together in [[i] for i in members] if alone else [members]:
            for number, (layout, region) in enumerate(make_segments(param, view, side)):
                group, strategy = process_group(param, layout, view), choose(layout)
                bucket = ShardedBucket(together, layout, group, dtype, half, param.device, strategy, [])
                cut.append(replace(bucket, region=region, counts_steps=number == 0))
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
