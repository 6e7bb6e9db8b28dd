"""Buckets: matrices of one shape, dtype and device as batches (B, p, n), however many parameters they came from.

A bucket is worked on in blocks that fit the cache. A block is several small parameters of one shape gathered into one
batch, or a whole parameter, or a part of a large one; the parts of one parameter form a unit, which is written at once.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel.plan import TINY, block_size
from orthoptim.views import compute_dtype, matrix_shape


class Block(NamedTuple):
    """Parameters of one shape, or the matrices ``start`` to ``stop`` of a single one, as one batch."""

    members: list[int]  # places in the list of parameters
    shape: torch.Size  # of each
    batch: torch.Size  # of the matrices in each
    rows: int
    columns: int
    transposed: bool
    part: tuple[int, int] | None = None  # (start, stop)

    def pick(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The members' among tensors that belong to all parameters."""
        return [tensors[i] for i in self.members]

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the members' shape as (B, p, n); a single one is viewed, not copied, where strides allow."""
        one = tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))
        matrices = one.resolve_conj().reshape(-1, self.rows, self.columns)
        if self.part is not None:
            matrices = matrices[self.part[0] : self.part[1]]
        return matrices.mT if self.transposed else matrices

    def scatter(self, matrices: Tensor) -> list[Tensor]:
        """The inverse of :meth:`gather`, to be copied to what :meth:`targets` returns."""
        if self.transposed:
            matrices = matrices.mT
        if self.part is not None:
            return [matrices]
        if len(self.members) == 1:
            return [matrices.reshape(self.shape)]
        return list(matrices.reshape(-1, *self.shape).unbind(0))

    def targets(self, tensors: list[Tensor]) -> list[Tensor]:
        """Where to write: the tensors, or the part of the single one."""
        if self.part is None:
            return tensors
        return [tensors[0].view(-1, self.rows, self.columns)[self.part[0] : self.part[1]]]

    def gather_scalars(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the members' batch shape as (B,)."""
        one = tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))
        values = one.reshape(-1)
        return values if self.part is None else values[self.part[0] : self.part[1]]

    def scatter_scalars(self, values: Tensor) -> list[Tensor]:
        """The inverse of :meth:`gather_scalars`."""
        if self.part is not None:
            return [values]
        return list(values.reshape(-1, *self.batch).unbind(0))

    def scalar_targets(self, tensors: list[Tensor]) -> list[Tensor]:
        """Where to write."""
        return tensors if self.part is None else [tensors[0].view(-1)[self.part[0] : self.part[1]]]


class Bucket(NamedTuple):
    """Matrices of one kind; each unit is a list of blocks to be written together."""

    p: int
    n: int
    dtype: torch.dtype  # to compute in
    half: bool  # whether the parameters are stored in less
    device: torch.device
    matrices: int
    units: list[list[Block]]


def make_buckets(
    params: Sequence[Tensor], view: str, side: str, states: Sequence[Sequence[Tensor]] = (), cut: bool = True
) -> list[Bucket]:
    """Sort parameters into buckets, in the order of their first members, and cut these into blocks.

    Args:
        params: the parameters.
        view: how they are seen.
        side: which side is orthonormal.
        states: further tensors of each parameter that are to be written in parts where the parameter is.
        cut: whether to cut buckets of tiny matrices too: a compiler fuses their step into one pass over memory.
    """
    kinds: dict[tuple[torch.Size, torch.dtype, torch.device], list[int]] = {}
    for index, param in enumerate(params):
        kinds.setdefault((param.shape, param.dtype, param.device), []).append(index)
    buckets: dict[tuple[int, int, torch.dtype, torch.device], Bucket] = {}
    for (shape, dtype, device), members in kinds.items():
        batch, p, n, transposed = matrix_shape(shape, view, side)
        compute = compute_dtype(dtype)
        key = (p, n, dtype, device)
        bucket = buckets.get(key, Bucket(p, n, compute, compute != dtype, device, 0, []))
        rows, columns = (n, p) if transposed else (p, n)
        size = block_size(p, n, compute.itemsize)
        # what is not contiguous cannot be written in parts
        whole = batch.numel() <= size or not (
            (cut or n > TINY) and all(tensors[i].is_contiguous() for tensors in (params, *states) for i in members)
        )
        units = _cut(Block(members, shape, batch, rows, columns, transposed), size, whole)
        matrices = bucket.matrices + len(members) * batch.numel()
        buckets[key] = bucket._replace(matrices=matrices, units=bucket.units + units)
    return list(buckets.values())


def _cut(block: Block, size: int, whole: bool) -> list[list[Block]]:
    """Units with blocks of ``size`` matrices, or of whole parameters."""
    count = block.batch.numel()
    if whole:
        step = max(1, size // count)
        starts = range(0, len(block.members), step)
        return [[block._replace(members=block.members[i : i + step])] for i in starts]
    parts = -(-count // size)
    cuts = [count * i // parts for i in range(parts + 1)]
    return [[block._replace(members=[member], part=part) for part in pairwise(cuts)] for member in block.members]
