"""The step of one block: what it is made of."""

import pytest
import torch

from orthoptim.engine.step import where


@pytest.mark.parametrize("shape", [(1, 0, 4), (2, 0, 4), (3, 0, 8), (2, 4, 0), (0, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_pieces_without_entries_are_chosen(shape, dtype):
    """A rank may hold no rows of a matrix that is cut."""
    a, b = torch.zeros(shape, dtype=dtype), torch.ones(shape, dtype=dtype)
    assert where(torch.ones(shape[0], dtype=torch.bool), a, b).shape == shape
    assert where(torch.ones(shape[0], dtype=torch.bool), a, b, out=a) is a
