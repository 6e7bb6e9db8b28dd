"""Buckets: matrices of one shape, dtype and device as one batch (B, p, n), however many parameters they came from."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.views import compute_dtype, from_matrices, matrix_shape, to_matrices


class Bucket(NamedTuple):
    """Which parameters of a list form one batch, and how they are seen."""

    members: list[int]
    shapes: list[torch.Size]
    counts: list[int]  # matrices in each member
    view: str
    side: str
    dtype: torch.dtype  # to compute in
    device: torch.device

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the parameters' shapes as (B, p, n); a single one is viewed, not copied, where strides allow."""
        parts = []
        for tensor, count in zip(tensors, self.counts, strict=True):
            matrices = to_matrices(tensor, self.view, self.side).resolve_conj()
            parts.append(matrices.reshape(count, *matrices.shape[-2:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def scatter(self, matrices: Tensor) -> list[Tensor]:
        """The inverse of :meth:`gather`."""
        parts = torch.split(matrices, self.counts)
        return [
            from_matrices(part, shape, self.view, self.side) for part, shape in zip(parts, self.shapes, strict=True)
        ]

    def gather_scalars(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the parameters' batch shapes as (B,)."""
        parts = [tensor.reshape(-1) for tensor in tensors]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def scatter_scalars(self, values: Tensor) -> list[Tensor]:
        """The inverse of :meth:`gather_scalars`."""
        batches = [matrix_shape(shape, self.view, self.side)[0] for shape in self.shapes]
        return [part.reshape(batch) for part, batch in zip(torch.split(values, self.counts), batches, strict=True)]


def make_buckets(params: Sequence[Tensor], view: str, side: str) -> list[Bucket]:
    """Sort parameters into buckets, in the order of their first members."""
    buckets: dict[tuple[object, ...], Bucket] = {}
    for index, param in enumerate(params):
        batch, p, n, _ = matrix_shape(param.shape, view, side)
        key = (p, n, param.dtype, param.device)
        if key not in buckets:
            buckets[key] = Bucket([], [], [], view, side, compute_dtype(param.dtype), param.device)
        bucket = buckets[key]
        bucket.members.append(index)
        bucket.shapes.append(param.shape)
        bucket.counts.append(batch.numel())
    return list(buckets.values())
