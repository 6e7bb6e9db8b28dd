"""Matrices as bytes."""

import torch

from orthoptim.distributed.collectives import ALIGNMENT, FieldSpec, packed, packed_layout

FIELDS = [
    torch.randn(5, 3, 2, dtype=torch.complex64).mT,  # not contiguous
    torch.randn(5, 0, 2),  # an empty piece
    torch.arange(5),
    torch.randn(5, dtype=torch.float64),
]
RECORD = packed_layout(*(FieldSpec(tuple(field.shape[1:]), field.dtype) for field in FIELDS))


def equal(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_is_packed_is_unpacked():
    buffer = packed(FIELDS)
    assert buffer.numel() == 5 * RECORD.size
    assert RECORD.size % ALIGNMENT == 0
    assert equal(RECORD.unpack(buffer, 5), FIELDS)


def test_every_owner_has_its_range():
    buffer = packed(FIELDS)
    for a, b in [(0, 2), (2, 2), (2, 5)]:
        part = buffer[a * RECORD.size : b * RECORD.size]
        assert equal(RECORD.unpack(part, b - a), [field[a:b] for field in FIELDS])


def test_the_pieces_of_all_members_are_unpacked_at_once():
    buffer = torch.cat([packed(FIELDS), packed([field + 1 for field in FIELDS])])
    stacked = RECORD.unpack_all(buffer, 5 * RECORD.size, 2, 5)
    assert equal(stacked, [torch.stack([field, field + 1]) for field in FIELDS])


def test_empty_pieces_take_no_bytes():
    nothing = torch.empty(5, 0, 2)
    buffer = packed([nothing])
    assert buffer.numel() == 0
    assert packed_layout(FieldSpec((0, 2), torch.float32)).unpack(buffer, 5)[0].shape == nothing.shape
