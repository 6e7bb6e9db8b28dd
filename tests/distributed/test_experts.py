"""Expert parallelism: weights [E, p, n] cut along E take steps without a collective, and end where one process ends."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import orthoptim as oo

METHODS = {"POGO": oo.POGO, "StiefelMuon": oo.StiefelMuon, "RGD": oo.RGD}


def draws(experts):
    """Experts to start from, up and down, and gradients of four steps."""
    generator = torch.Generator().manual_seed(experts)
    shape = (2, experts, 4, 12)
    start = oo.orthogonalize_(torch.empty(shape, dtype=torch.float64), init="random", generator=generator)
    return start, torch.randn(4, *shape, dtype=torch.float64, generator=generator)


def train(rank, method, experts):
    """The number of collectives of each step, the strategies, the largest error against one process."""
    mesh = init_device_mesh("cpu", (2,))
    start, gradients = draws(experts)
    alone = [torch.nn.Parameter(x.clone()) for x in start]
    split = [torch.nn.Parameter(distribute_tensor(x, mesh, [Shard(0)])) for x in start]
    reference, optimizer = (METHODS[method](params, lr=0.1) for params in (alone, split))
    counts = []
    for step in gradients:
        for one, part, grad in zip(alone, split, step, strict=True):
            one.grad, part.grad = grad, distribute_tensor(grad, mesh, [Shard(0)])
        reference.step()
        with CommDebugMode() as mode:
            optimizer.step()
        counts.append(mode.get_total_counts())
    error = max(float((part.full_tensor() - one).abs().max()) for one, part in zip(alone, split, strict=True))
    return counts, {row.strategy for row in optimizer.plan()}, error


@pytest.mark.parametrize("experts", [8, 5])  # of five experts the ranks have three and two
@pytest.mark.parametrize("method", METHODS)
def test_steps_of_experts_send_nothing(two, method, experts):
    for counts, strategies, error in two.run(train, method, experts):
        assert counts == [0, 0, 0, 0]
        assert strategies == {"local"}
        assert error < 1e-12
