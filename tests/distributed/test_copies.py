"""What AdamW can do with DTensors after a step, ours can: be copied, saved to a file, saved in the background."""

import copy
import io
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.tensor import Shard, distribute_tensor

import orthoptim as oo
from tests.conformance.methods import point
from tests.distributed.cases import mesh_of

# several of each kind, so that they share a bucket: near-square, long side cut, short side cut, whole on a rank
SHAPES = [
    ((8, 8), 0),
    ((8, 8), 0),
    ((4, 64), 1),
    ((4, 64), 1),
    ((4, 64), 0),
    ((4, 64), 0),
    ((4, 3, 5), 0),
    ((4, 3, 5), 0),
]
OPTIMIZERS = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
    "POGO": lambda params: oo.POGO(params, lr=0.1),
    "POGO, Muon": lambda params: oo.POGO(params, lr=0.1, base=oo.Muon()),
    "RGD": lambda params: oo.RGD(params, lr=0.1, base=oo.SGD(momentum=0.9)),
    "Landing": lambda params: oo.Landing(params, lr=0.1, base=oo.SGD(momentum=0.9)),
}


class Net(nn.Module):
    def __init__(self, world, dtype):
        super().__init__()
        for i, (shape, dim) in enumerate(SHAPES):
            x = point(*shape, seed=i).detach().to(dtype)
            placed = distribute_tensor(x, mesh_of((world,)), [Shard(dim)], src_data_rank=None)
            self.register_parameter(f"w{i}", nn.Parameter(placed))


def train(net, opt, steps):
    for t in steps:
        for i, param in enumerate(net.parameters()):
            noise = torch.randn(param.shape, generator=torch.Generator().manual_seed(100 * t + i)).to(param.dtype)
            param.grad = distribute_tensor(noise, param.device_mesh, param.placements, src_data_rank=None)
        opt.step()


def values(net):
    return [param.detach().full_tensor() for param in net.parameters()]


def copied(rank, name, dtype):
    net = Net(dist.get_world_size(), dtype)
    opt = OPTIMIZERS[name](net.parameters())
    train(net, opt, range(2))
    twin, other = copy.deepcopy((net, opt))
    train(net, opt, range(2, 4))
    train(twin, other, range(2, 4))
    return [torch.equal(a, b) for a, b in zip(values(net), values(twin), strict=True)]


def saved(rank, name, dtype):
    net = Net(dist.get_world_size(), dtype)
    opt = OPTIMIZERS[name](net.parameters())
    train(net, opt, range(2))
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
    train(net, opt, range(2, 4))
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    twin = Net(dist.get_world_size(), dtype)
    other = OPTIMIZERS[name](twin.parameters())
    twin.load_state_dict(loaded["net"])
    other.load_state_dict(loaded["opt"])
    train(twin, other, range(2, 4))
    return [torch.equal(a, b) for a, b in zip(values(net), values(twin), strict=True)]


def saved_in_the_background(rank, name, dtype, folder):
    net = Net(dist.get_world_size(), dtype)
    opt = OPTIMIZERS[name](net.parameters())
    train(net, opt, range(2))
    state = {"net": net.state_dict(), "opt": get_optimizer_state_dict(net, opt)}
    saving = dcp.async_save(state, checkpoint_id=folder)
    saving.result()
    train(net, opt, range(2, 4))
    twin = Net(dist.get_world_size(), dtype)
    other = OPTIMIZERS[name](twin.parameters())
    read = {"net": twin.state_dict(), "opt": get_optimizer_state_dict(twin, other)}
    dcp.load(read, checkpoint_id=folder)
    twin.load_state_dict(read["net"])
    set_optimizer_state_dict(twin, other, read["opt"])
    train(twin, other, range(2, 4))
    return [torch.equal(a, b) for a, b in zip(values(net), values(twin), strict=True)]


every = pytest.mark.parametrize("name", OPTIMIZERS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@every
@dtypes
def test_a_deep_copy_goes_on_as_the_original(two, name, dtype):
    assert all(all(same) for same in two.run(copied, name, dtype))


@every
@dtypes
def test_a_saved_state_goes_on_as_if_nothing_had_been(two, name, dtype):
    assert all(all(same) for same in two.run(saved, name, dtype))


@every
def test_a_checkpoint_made_in_the_background(two, name):
    with tempfile.TemporaryDirectory() as folder:
        assert all(all(same) for same in two.run(saved_in_the_background, name, torch.float32, folder))
