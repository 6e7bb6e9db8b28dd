"""Complex parameters under DistributedDataParallel, whose gradients some versions of torch have made real."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import orthoptim as oo


class Model(nn.Module):
    """Two unitary matrices and a real parameter, which DDP puts into a bucket of another dtype."""

    def __init__(self, dtype):
        super().__init__()
        self.u = nn.Parameter(torch.eye(4, 6, dtype=dtype))
        self.v = nn.Parameter(torch.eye(6, dtype=dtype))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (x @ self.u @ self.v).sin().real.sum() * self.scale.sum()


def inputs(rank, dtype):
    return torch.randn(2, 4, dtype=dtype, generator=torch.Generator().manual_seed(rank))


def averaged(rank, dtype, options):
    """The gradients under DDP in the first and in a later step (it then has new buckets), and the mean over ranks."""
    model = Model(dtype)
    parallel = DistributedDataParallel(model, **options)
    found = []
    for _ in range(3):
        parallel.zero_grad()
        parallel(inputs(rank, dtype)).backward()
        found.append([param.grad.clone() for param in model.parameters()])
    ranks = range(dist.get_world_size())
    single = Model(dtype)
    for each in ranks:
        (single(inputs(each, dtype)) / len(ranks)).backward()
    return found[0], found[-1], [param.grad for param in single.parameters()]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 1e-5}], ids=str
)
def test_the_gradient_is_the_mean_over_ranks(two, dtype, options):
    for first, last, mean in two.run(averaged, dtype, options):
        assert min(float(grad.imag.abs().max()) for grad in mean[:2]) > 0.1
        torch.testing.assert_close(first, mean)
        torch.testing.assert_close(last, mean)


def trained(rank):
    model = Model(torch.complex128)
    parallel = DistributedDataParallel(model)
    opt = oo.POGO(oo.param_groups(model, {"[uv]": "matrix"}, lr=0.1, rest={"algorithm": "adamw", "lr": 1e-2}))
    for _ in range(20):
        opt.zero_grad()
        parallel(inputs(rank, torch.complex128)).backward()
        opt.step()
    return [param.detach() for param in model.parameters()], opt.drift()[0].max_distance


def test_replicas_stay_alike_and_unitary(two):
    (first, far), (second, _) = two.run(trained)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].imag.abs().max() > 0.1
    assert far < 1e-3
