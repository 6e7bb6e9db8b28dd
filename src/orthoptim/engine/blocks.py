"""Blocks: tensors of several parameters as one batch of matrices (B, p, n), and back.

Where tensors lie in memory decides what must be copied: neighbours are one batch as they are, and what would make BLAS
round otherwise (gaps, a start that is not aligned) is copied first.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from orthoptim import pointwise
from orthoptim.engine.moves import gathered, scatter_
from orthoptim.stiefel.batches import is_gpu
from orthoptim.tensors import has_values

_ALIGNMENT = 64
"""Bytes: torch allocates so on a CPU."""


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
    scale: float = 1.0  # σ: the parameters hold σ times the matrices

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
            if len(tensors) > 1 and is_gpu(matrices.device.type):  # which copies tensors of other strides one by one
                matrices = matrices.contiguous()
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
        scatters = not self.mixed and matrices.device.type in pointwise.DEVICES
        if not scatters or not scatter_(tensors, matrices):
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
    if len(tensors) > 1 or torch.compiler.is_compiling():
        return False
    if not has_address(values):
        return _places([tensors[0], values]) == [_place(values)] * 2
    return tensors[0].data_ptr() == values.data_ptr()


def _place(tensor: Tensor) -> int:
    """Where a tensor begins in its storage, in bytes."""
    return int(tensor.storage_offset()) * tensor.itemsize


def _places(tensors: list[Tensor]) -> list[int]:
    """Where tensors begin in memory; those without an address in their storage, if it is one."""
    if has_address(tensors[0]):
        return [tensor.data_ptr() for tensor in tensors]
    if len({tensor.untyped_storage()._cdata for tensor in tensors}) > 1:
        return []
    return list(map(_place, tensors))


def copy_all_(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, with few kernel launches."""
    if targets[0].is_complex():
        # foreach does not write through lazily conjugated views: write the conjugate into the memory behind them
        lazy = [t.is_conj() for t in targets]
        sources = [s.conj().resolve_conj() if c else s for s, c in zip(sources, lazy, strict=True)]
        targets = [t.conj() if c else t for t, c in zip(targets, lazy, strict=True)]
    if len(targets) == 1:  # foreach would cut a large one in several launches
        targets[0].copy_(sources[0])
    else:
        torch._foreach_copy_(targets, sources)


def together(tensors: list[Tensor], mixed: bool = False) -> list[Tensor]:
    """Tensors of one shape (...) as a single one (k, ...) where they lie side by side, else as they are.

    Its strides are those of :func:`stacked`, of which this saves the copy.

    Args:
        tensors: of one shape.
        mixed: whether they are of several shapes: then all entries are in one dim.
    """
    if len(tensors) < 2 or torch.compiler.is_compiling():
        return tensors
    if mixed:
        return _in_one_row(tensors)
    first, size = tensors[0], tensors[0].nbytes
    if size == 0 or not is_dense(first):
        return tensors
    start, *others = _places(tensors[:2]) or [0]
    stop = start + len(tensors) * size
    if others != [start + size] or stop > _end_of_storage(first):  # beyond it are neighbours by chance
        return tensors
    stride = first.stride()
    if _places(tensors) != list(range(start, stop, size)):
        return tensors
    if stride and any(t.stride() != stride for t in tensors):
        return tensors
    flat = first.as_strided((len(tensors) * first.numel(),), (1,))
    if by_columns(first):
        return [flat.view(len(tensors), *first.mT.shape).mT]
    return [flat.view(len(tensors), *first.shape)]


def _in_one_row(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors of any shape as one of one dim, where their entries lie side by side in the order of rows."""
    sizes = [tensor.nbytes for tensor in tensors]
    start, *others = _places(tensors) or [0]
    *expected, stop = accumulate(sizes, initial=start)
    if not others or [start, *others] != expected or stop > _end_of_storage(tensors[0]):
        return tensors
    if not all(tensor.is_contiguous() and not tensor.is_conj() for tensor in tensors):
        return tensors
    return [tensors[0].as_strided((sum(tensor.numel() for tensor in tensors),), (1,))]


def _end_of_storage(tensor: Tensor) -> int:
    storage = tensor.untyped_storage()
    return storage.nbytes() + (storage.data_ptr() if has_address(tensor) else 0)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape (...) as (k, ...), by columns where all of them lie so, else by rows.

    Products of matrices that lie otherwise are rounded otherwise: the strides depend on those of the tensors alone, not
    on whether these are neighbours in memory, which a checkpoint does not tell.
    """
    if not tensors[0].is_contiguous():
        tensors = [without_gaps(each) for each in tensors]
        if all(map(by_columns, tensors)):
            return torch.stack([each.mT for each in tensors]).mT
    joined = gathered(tensors) if tensors[0].device.type in pointwise.DEVICES else None
    if joined is not None:
        return joined
    return torch.stack(list(tensors)).contiguous()  # a stack of images may be channels-last


def without_gaps(a: Tensor) -> Tensor:
    """The same, or a copy where its place in memory would show in the result of products.

    Gaps between entries do (``deepcopy`` does not keep them), and so does, on a CPU, a start that is not aligned, as of
    slices of one flat tensor: BLAS takes another path there, and rounds otherwise.
    """
    if torch.compiler.is_compiling():
        return a
    dense = a.is_contiguous() or by_columns(a) or torch.empty_like(a, device="meta").stride() == a.stride()
    aligned = not a.is_cpu or not has_address(a) or a.data_ptr() % _ALIGNMENT == 0
    return a if dense and aligned else a.clone()


def by_columns(a: Tensor) -> bool:
    """Whether the entries fill a stretch of memory in the order of columns, as after ``qr``, and not of rows."""
    return a.ndim >= 2 and not a.is_contiguous() and a.mT.is_contiguous()


def is_dense(a: Tensor) -> bool:
    """Whether the entries fill a stretch of memory in the order of rows or of columns."""
    return (a.is_contiguous() or by_columns(a)) and not a.is_conj()


def has_address(a: Tensor) -> bool:
    """Whether there is memory behind a tensor: not so for meta and fake tensors."""
    return (type(a) in (Tensor, Parameter) and not a.is_meta) or has_values(a)
