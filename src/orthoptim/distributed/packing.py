"""Matrices as bytes, to be sent: one record after another, each all that goes with a matrix.

So what goes to the owners of ranges of matrices is a stretch of one buffer, filled in as many copies as a record has
fields, however many owners there are.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes: that of complex128, and a divisor of the size of every record."""


class FieldSpec(NamedTuple):
    """What a field looks like: its shape for one matrix, and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class PackedLayout(NamedTuple):
    """Where the fields of a record are.

    Attributes:
        size: bytes of a record.
        fields: of each its dtype and, in units of that, its shape, strides and start.
    """

    size: int
    fields: tuple[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int], ...]

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """The bytes of the records of matrices; a tensor (B, ...) for each field."""
        count = tensors[0].shape[0]
        buffer = torch.empty(count * self.size, dtype=torch.uint8, device=tensors[0].device)
        if count:
            for field, tensor in zip(self.unpack(buffer, count), tensors, strict=True):
                field.copy_(tensor)
        return buffer

    def unpack(self, buffer: Tensor, count: int) -> list[Tensor]:
        """The fields in the bytes of ``count`` records, as views."""
        typed = {dtype: buffer.view(dtype) for dtype in {field[0] for field in self.fields}}
        return [
            typed[dtype].as_strided(
                (count, *shape), (self.size // dtype.itemsize, *strides), typed[dtype].storage_offset() + start
            )
            for dtype, shape, strides, start in self.fields
        ]


@lru_cache(maxsize=1024)  # every step sends what the last one did
def packed_layout(*likes: FieldSpec) -> PackedLayout:
    """The record of some fields."""
    fields, end = [], 0
    for shape, dtype in likes:
        start = -(-end // dtype.itemsize)
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        fields.append((dtype, shape, strides, start))
        end = (start + math.prod(shape)) * dtype.itemsize
    return PackedLayout(-(-end // ALIGNMENT) * ALIGNMENT, tuple(fields))


def packed(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The bytes of all that goes to one member of a group: a tensor (B, ...) for each field."""
    return [_record_of(tensors).pack(tensors)]


def by_owner(tensors: Sequence[Tensor], owners: Sequence[tuple[int, int]]) -> list[list[Tensor]]:
    """The bytes that go to each owner of a range of the matrices."""
    fields = _record_of(tensors)
    buffer = fields.pack(tensors)
    return [[buffer[a * fields.size : b * fields.size]] for a, b in owners]


def _record_of(tensors: Sequence[Tensor]) -> PackedLayout:
    return packed_layout(*(FieldSpec(tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors))


def unpack_all(records: Sequence[PackedLayout], parts: Sequence[Sequence[Tensor]], count: int) -> list[list[Tensor]]:
    """The fields of what each member of a group has sent, ``count`` records in one tensor of bytes."""
    return [fields.unpack(one, count) for fields, (one,) in zip(records, parts, strict=True)]
