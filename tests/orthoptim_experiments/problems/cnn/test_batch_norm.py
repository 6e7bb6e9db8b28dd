"""Batch normalisation of a batch that lies on several ranks is that of the whole batch."""

import pytest
import torch
from torch import nn

from orthoptim_experiments.harness import ranks
from orthoptim_experiments.problems.cnn.batch_norm import BatchNorm2d
from tests.orthoptim_experiments.together import together

SETTINGS = {"eps": 1e-12, "momentum": 0.4}
BATCHES = 2


def data(dtype):
    draws = torch.Generator().manual_seed(0)
    shape = (BATCHES, 9, 5, 4, 3)
    x, dy = (torch.randn(shape, generator=draws, dtype=torch.float64) for _ in range(2))
    x = x * torch.tensor([1e-3, 1, 10, 1, 1]).view(5, 1, 1) + torch.tensor([0, 100, 0, -3, 1]).view(5, 1, 1)
    return x.to(dtype), dy.to(dtype)


def normalise(kind, dtype):
    norm = kind(5, **SETTINGS).to(torch.float64 if dtype == torch.float64 else torch.float32)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 5))
    found = []
    for x, dy in zip(*data(dtype), strict=True):
        own = ranks.local_slice(len(x))
        x = x[own].contiguous(memory_format=torch.channels_last).requires_grad_()
        y = norm(x)
        y.backward(dy[own])
        found.append((y.detach(), x.grad))
    y, dx = (torch.stack(each) for each in zip(*found, strict=True))
    grads = [ranks.all_reduce_sum(param.grad) for param in norm.parameters()]
    norm.eval()
    return {"y": y, "dx": dx}, {"grads": grads, "state": norm.state_dict(), "eval": norm(data(dtype)[0][0]).detach()}


TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-4, torch.bfloat16: 0.1}


def normalise_all():
    return {dtype: normalise(BatchNorm2d, dtype) for dtype in TOLERANCES}


@pytest.mark.parametrize("world_size", [2, 4])
def test_it_is_that_of_the_whole_batch(world_size):
    everywhere = together(world_size, normalise_all)
    for dtype, tolerance in TOLERANCES.items():
        own, common = normalise(nn.BatchNorm2d, dtype)
        found = [each[dtype] for each in everywhere]
        for name, whole in own.items():
            joined = torch.cat([parts[name] for parts, _ in found], dim=1)
            assert joined.dtype == dtype
            torch.testing.assert_close(joined, whole, rtol=tolerance, atol=tolerance)
        for _, theirs in found:
            torch.testing.assert_close(theirs, common, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(theirs, found[0][1], rtol=0, atol=0)


def test_alone_it_is_torch_s_own():
    for one, other in zip(normalise(nn.BatchNorm2d, torch.float32), normalise(BatchNorm2d, torch.float32), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
