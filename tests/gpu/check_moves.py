"""Many tensors to one and back, by Triton's interpreter."""

import pytest
import torch

from orthoptim import pointwise
from orthoptim.engine import moves
from orthoptim.engine.moves import gathered, scatter_

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(pointwise, "DEVICES", {"cpu"})
    monkeypatch.setattr(moves, "_tables", {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
def test_many_tensors_are_gathered_and_written_back(dtype):
    tensors = [torch.randn(6, 18, dtype=dtype) for _ in range(70)]
    joined = gathered(tensors)
    assert torch.equal(joined, torch.stack(tensors))
    assert scatter_(tensors, 2 * joined)
    assert all(torch.equal(tensor, 2 * value) for tensor, value in zip(tensors, joined, strict=True))
    assert len(moves._tables) == 1


def test_tables_are_made_again_when_tensors_move_and_are_not_kept_forever(monkeypatch):
    monkeypatch.setattr(moves, "_KEPT", 3)
    for _ in range(moves._KEPT + 3):
        tensors = [torch.randn(3) for _ in range(moves.FROM)]
        assert torch.equal(gathered(tensors), torch.stack(tensors))
    assert len(moves._tables) <= moves._KEPT


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.ones(4)] * 3,
        [torch.ones(3, dtype=torch.bfloat16)] * 70,
        [torch.ones(4, 4).mT[:2]] * 70,
        [torch.ones(4), *[torch.ones(4, dtype=torch.float64)] * 70],
        [torch.ones(0)] * 70,
    ],
    ids=["few", "odd bytes", "strided", "dtypes", "empty"],
)
def test_the_rest_is_left_to_torch(tensors):
    assert gathered(tensors) is None
    assert not scatter_(tensors, torch.ones(len(tensors), *tensors[0].shape))
