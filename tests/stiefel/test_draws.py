"""Draws are a pure function of their counters: the same numbers on every device and in every version."""

import math
import struct

import numpy as np
import pytest
import torch

from orthoptim import stiefel
from orthoptim.stiefel import draws
from tests.strategies import gaussian

MASK = 2**64 - 1


def splitmix(key):
    """splitmix64's next output, in Python's integers."""
    z = (key + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def signed(z):
    return z - 2**64 if z >= 2**63 else z


def uniform(stream, t, seed, count):
    key = splitmix(splitmix((stream ^ seed) & MASK) ^ t)
    return [((splitmix(key ^ splitmix(i)) >> 11) + 0.5) * 2.0**-53 for i in range(count)]


def test_mix_is_splitmix64():
    assert splitmix(0) == 0xE220A8397B1DCDAF  # the published first output of seed 0
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    assert draws.mix(torch.tensor(keys)).tolist() == [signed(splitmix(key & MASK)) for key in keys]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_a_fingerprint_is_a_hash_of_every_entry_and_its_place(dtype):
    x = gaussian((2, 3, 4), dtype, 0)
    expected = []
    for matrix in x:
        entries = torch.view_as_real(matrix).flatten() if dtype.is_complex else matrix.flatten()
        bits = [struct.unpack("<Q", struct.pack("<d", float(entry)))[0] for entry in entries]
        total = sum(splitmix(b) ^ splitmix(i) for i, b in enumerate(bits)) & MASK
        expected.append(signed(splitmix(total)))
    assert draws.fingerprint(x).tolist() == expected
    assert draws.fingerprint(x.mT.contiguous().mT).tolist() == expected  # however it lies in memory
    assert draws.fingerprint(x[0]).tolist() == expected[0]


def test_uniform_numbers_are_those_of_their_counters():
    stream = torch.tensor([5, -7, 2**62])
    found = draws.uniform(stream, torch.tensor([1.0, 2.0, 3.0]), 11, 6)
    assert found.tolist() == [uniform(s & MASK, t, 11, 6) for s, t in zip(stream.tolist(), (1, 2, 3), strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_gaussian_numbers_are_box_muller_s(dtype):
    stream, t = torch.tensor([5, -7]), torch.ones(2)
    u = draws.uniform(stream, t, 3, 24).numpy().reshape(2, 2, 3, 4)
    radius, angle = np.sqrt(-2 * np.log(u[:, 0])), 2 * math.pi * u[:, 1]
    expected = radius * np.exp(1j * angle) if dtype.is_complex else radius * np.cos(angle)
    found = draws.gaussian(stream, t, 3, (3, 4), dtype)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=10 * torch.finfo(dtype).eps)


def test_a_subspace_is_that_of_gaussian_rows_and_columns_are_those_of_the_least_numbers():
    stream, t = torch.tensor([5, -7]), torch.ones(2)
    rows = draws.gaussian(stream, t, 3, (2, 5), torch.complex128)
    assert torch.equal(draws.subspace(stream, t, 3, 2, 5, torch.complex128), stiefel.row_qr(rows))
    least = np.argsort(draws.uniform(stream, t, 3, 5).numpy(), -1)[:, :2]
    assert draws.columns(stream, t, 3, 2, 5).tolist() == least.tolist()
