"""Buckets: matrices of one shape, dtype and device as batches (B, p, n), however many parameters they came from.

A bucket is worked on in blocks that fit the cache. A block is several small parameters of one shape gathered into one
batch, or a whole parameter, or a part of a large one. Tiny matrices are gathered with the batch as the last dim in
memory, so that whatever is done to them runs along it; as each of their hundred small operations has its price, small
parameters of any shape are put together.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.engine.state import stacked, without_gaps
from orthoptim.stiefel.cost_model import TINY, block_size
from orthoptim.tensors import compute_dtype, has_values
from orthoptim.views import View, ViewLike


class Block(NamedTuple):
    """Parameters, or the matrices ``start`` to ``stop`` of a single one, as one batch."""

    members: list[int]  # places in the list of parameters
    matrices: int
    rows: int
    columns: int
    transposed: bool
    batch_last: bool  # in memory
    part: tuple[int, int] | None = None  # (start, stop)
    mixed: bool = False  # whether the parameters have several shapes

    def pick(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The members' among tensors that belong to all parameters."""
        return [tensors[i] for i in self.members]

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the members' shapes as (B, p, n); a single one is viewed, not copied, where strides allow.

        Tiny matrices are copied, unless they lie so already.
        """
        matrices = self._joined(tensors).resolve_conj().reshape(-1, self.rows, self.columns)
        if self.part is not None:
            matrices = matrices[self.part[0] : self.part[1]]
        batch = len(matrices)
        # entry by entry, which is three times as fast as a copy of the transposed view
        if self.batch_last and (batch == 1 or matrices.stride(0) != 1):
            entries = torch.stack(matrices.flatten(1).unbind(1))
            matrices = entries.view(self.rows, self.columns, batch).permute(2, 0, 1)
        return matrices.mT if self.transposed else matrices

    def write_(self, tensors: list[Tensor], matrices: Tensor) -> None:
        """The inverse of :meth:`gather`: write matrices to the tensors they belong to."""
        if self.transposed:
            matrices = matrices.mT
        if self.part is not None:
            tensors = [tensors[0].view(-1, self.rows, self.columns)[self.part[0] : self.part[1]]]
        if _same_memory(tensors, matrices):
            return
        if self.batch_last:
            entries = matrices.permute(1, 2, 0).flatten(0, 1).unbind(0)
            alone = tensors[0] if len(tensors) == 1 and tensors[0].is_contiguous() else None
            if alone is not None and alone.dtype == matrices.dtype:
                torch.stack(entries, 1, out=alone.view(-1, self.rows * self.columns))
                return
            matrices = torch.stack(entries, 1)
        copy_all_(tensors, self._pieces(tensors, matrices))

    def gather_scalars(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the members' batch shapes as (B,)."""
        values = self._joined(tensors).reshape(-1)
        return values if self.part is None else values[self.part[0] : self.part[1]]

    def write_scalars_(self, tensors: list[Tensor], values: Tensor) -> None:
        """The inverse of :meth:`gather_scalars`."""
        if self.part is not None:
            tensors = [tensors[0].view(-1)[self.part[0] : self.part[1]]]
        if _same_memory(tensors, values):
            return
        copy_all_(tensors, self._pieces(tensors, values))

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        if len(tensors) == 1:
            return without_gaps(tensors[0])
        # stacking a thousand tensors is one call, flattening them a thousand
        return torch.cat([each.reshape(-1) for each in tensors]) if self.mixed else stacked(tensors)

    def _pieces(self, tensors: Sequence[Tensor], joined: Tensor) -> list[Tensor]:
        if not self.mixed:
            return list(joined.reshape(-1, *tensors[0].shape).unbind(0))
        pieces = torch.split(joined.reshape(-1), [each.numel() for each in tensors])
        return [piece.view(each.shape) for piece, each in zip(pieces, tensors, strict=True)]


def _same_memory(tensors: list[Tensor], values: Tensor) -> bool:
    """Whether values have been written where they belong already."""
    if len(tensors) > 1 or torch.compiler.is_compiling() or not has_values(values):
        return False
    return tensors[0].data_ptr() == values.data_ptr()


def copy_all_(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, with few kernel launches."""
    if targets[0].is_complex():
        # foreach does not write through lazily conjugated views: write the conjugate into the memory behind them
        lazy = [t.is_conj() for t in targets]
        sources = [s.conj().resolve_conj() if c else s for s, c in zip(sources, lazy, strict=True)]
        targets = [t.conj() if c else t for t, c in zip(targets, lazy, strict=True)]
    torch._foreach_copy_(targets, sources)


class Bucket(NamedTuple):
    """Matrices of one shape, dtype and device that are whole on this device.

    Attributes:
        p: rows, the shorter side.
        n: columns.
        dtype: what is computed in.
        half: whether the parameters are stored in less.
        device: where.
        members: positions in the list of parameters.
        counts: for each member, how many matrices it holds.
        blocks: what is worked on at a time.
        group: index of the param group.
        names: those of the members.
        form: the form of the step.
    """

    p: int
    n: int
    dtype: torch.dtype
    half: bool
    device: torch.device
    members: list[int]
    counts: list[int]
    blocks: list[Block]
    group: int = 0
    names: tuple[str, ...] = ()
    form: str = ""

    @property
    def strategy(self) -> str:
        """Nothing travels between ranks."""
        return "local"


def make_buckets(
    params: Sequence[Tensor],
    view: ViewLike,
    side: str,
    states: Sequence[Sequence[Tensor]] = (),
    compile: bool = False,
) -> list[Bucket]:
    """Sort parameters into buckets, in the order of their first members, and cut these into blocks.

    Args:
        params: the parameters; where the view divides them, their parts.
        view: how they are seen.
        side: which side is orthonormal.
        states: further tensors of each parameter that are to be written in parts where the parameter is.
        compile: whether a compiler is at work: it fuses the step of tiny matrices into one pass over memory, so these
            are then neither cut nor laid out anew.
    """
    kinds: dict[tuple[torch.Size, torch.dtype, torch.device], list[int]] = {}
    for index, param in enumerate(params):
        kinds.setdefault((param.shape, param.dtype, param.device), []).append(index)
    buckets: dict[tuple[int, int, torch.dtype, torch.device], Bucket] = {}
    for (shape, dtype, device), members in kinds.items():
        batch, p, n, transposed, _ = View.of(view).part(shape, side)
        compute = compute_dtype(dtype)
        key = (p, n, dtype, device)
        bucket = buckets.get(key, Bucket(p, n, compute, compute != dtype, device, [], [], []))
        rows, columns = (n, p) if transposed else (p, n)
        size = block_size(p, n, compute.itemsize)
        tiny = n <= TINY
        whole = (
            batch.numel() <= size
            or (tiny and compile)
            or not all(_divisible(tensors[i], len(batch)) for tensors in (params, *states) for i in members)
        )
        block = Block(members, len(members) * batch.numel(), rows, columns, transposed, tiny and not compile)
        buckets[key] = bucket._replace(
            members=bucket.members + members,
            counts=bucket.counts + [batch.numel()] * len(members),
            blocks=bucket.blocks + _cut(block, size, whole),
        )
    return [_put_together(bucket) for bucket in buckets.values()]


def _divisible(a: Tensor, batch_dims: int) -> bool:
    """Whether the matrices, or one value of each, can be written in parts: a batch of one dim is a view of it."""
    if a.is_contiguous():
        return True
    if a.ndim - batch_dims not in (0, 2):  # the sides of a matrix are several dims each
        return False
    return all(a.stride(i) == a.stride(i + 1) * a.shape[i + 1] for i in range(batch_dims - 1))


def _cut(block: Block, size: int, whole: bool) -> list[Block]:
    """Blocks of ``size`` matrices, or of whole parameters."""
    members, count = block.members, block.matrices // len(block.members)
    if whole:
        step = max(1, size // count)
        chosen = [members[i : i + step] for i in range(0, len(members), step)]
        return [block._replace(members=some, matrices=count * len(some)) for some in chosen]
    parts = list(pairwise([*range(0, count, size), count]))
    return [block._replace(members=[m], matrices=part[1] - part[0], part=part) for m in members for part in parts]


def _put_together(bucket: Bucket) -> Bucket:
    """The same with small blocks of tiny matrices in one, whatever the shapes of their parameters."""
    size = block_size(bucket.p, bucket.n, bucket.dtype.itemsize)
    blocks: list[Block] = []
    growing: dict[bool, int] = {}  # which of the blocks may still take others that lie in memory like it
    for block in bucket.blocks:
        small = block.batch_last and block.part is None and 2 * block.matrices <= size
        at = growing.get(block.transposed)
        if small and at is not None and blocks[at].matrices + block.matrices <= size:
            members, matrices = blocks[at].members + block.members, blocks[at].matrices + block.matrices
            blocks[at] = block._replace(members=members, matrices=matrices, mixed=True)
            continue
        if small:
            growing[block.transposed] = len(blocks)
        blocks.append(block)
    return bucket._replace(blocks=blocks)
