"""Matrices as bytes."""

import torch

from orthoptim.distributed.collectives import ALIGNMENT, pack_ranges, range_sizes, record_of, unpack_ranges

FIELDS = [
    torch.randn(5, 3, 2, dtype=torch.complex64).mT,  # not contiguous
    torch.randn(5, 0, 2),  # an empty piece
    torch.arange(5),
    torch.randn(5, dtype=torch.float64),
]


def equal(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def round_trip(ranges, fields, gaps):
    """Through a buffer, with bytes of others between those of the members."""
    sizes = range_sizes(ranges, fields)
    assert all(size % ALIGNMENT == 0 for size in sizes.values())
    buffer, start, starts = torch.zeros(10_000, dtype=torch.uint8), 0, {}
    for (member, size), gap in zip(sizes.items(), gaps, strict=False):
        starts[member] = start
        start += size + gap
    pack_ranges(ranges, fields, buffer, starts)
    return unpack_ranges(ranges, fields, buffer, starts)


def test_every_owner_has_its_range():
    for ranges in [[(0, 5)], [(0, 2), (2, 2), (2, 5)], [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]]:
        for gaps in [(0,) * 5, (32,) * 5, (16, 16, 48, 0, 0)]:
            assert equal(round_trip(ranges, FIELDS, gaps), FIELDS)


def test_a_buffer_holds_the_records_of_its_range():
    buffer = torch.zeros(2 * record_of(FIELDS).size, dtype=torch.uint8)
    pack_ranges([(0, 3), (3, 5)], FIELDS, buffer, {1: 0})
    assert equal([each[0] for each in record_of(FIELDS).views(buffer, 0, 2)], [field[3:] for field in FIELDS])


def test_empty_pieces_take_no_bytes():
    nothing = torch.empty(5, 0, 2)
    assert range_sizes([(0, 5)], [nothing]) == {}
    assert unpack_ranges([(0, 5)], [nothing], torch.empty(0, dtype=torch.uint8), {})[0].shape == nothing.shape
