"""Tools that shard in other ways: ZeroRedundancyOptimizer works, and flattened parameters are refused by name."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard

import orthoptim as oo
from tests.distributed.cases import Case, place, start

WIDE = Case((4, 40), (2,), "1")
PATTERNS = {"*weight": "matrix"}


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 6))
    return oo.orthogonalize_(net, PATTERNS, init="random", generator=torch.Generator().manual_seed(0))


def train(net, opt, steps):
    for t in steps:
        for i, param in enumerate(net.parameters()):
            param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(100 * t + i))
        opt.step()


def zero(rank):
    """ZeRO-1 steps as one optimizer does, and its consolidated state resumes."""
    options = {"lr": 0.1, "rest": {"algorithm": "adamw", "lr": 1e-2}}
    single, net, twin = network(), network(), network()
    reference = oo.POGO(oo.param_groups(single, PATTERNS, **options))
    opt, other = (
        ZeroRedundancyOptimizer(oo.param_groups(each, PATTERNS, **options), optimizer_class=oo.POGO, lr=0.1)
        for each in (net, twin)
    )
    train(single, reference, range(4))
    train(net, opt, range(2))
    states = []
    for to in range(dist.get_world_size()):  # each rank needs the whole of it
        opt.consolidate_state_dict(to=to)
        states.append(copy.deepcopy(opt.state_dict()) if to == rank else None)
    twin.load_state_dict(net.state_dict())
    other.load_state_dict(states[rank])
    train(net, opt, range(2, 4))
    train(twin, other, range(2, 4))
    expected = list(single.parameters())
    held = sum(len(group["params"]) for group in opt.optim.param_groups)
    return held, [
        max(float((a - b).detach().abs().max()) for a, b in zip(expected, each.parameters(), strict=True))
        for each in (net, twin)
    ]


def test_zero_redundancy_optimizer_takes_param_groups(two):
    answers = two.run(zero)
    assert sum(held for held, _ in answers) == 6
    assert all(0 < held < 6 for held, _ in answers)
    for _, errors in answers:
        assert max(errors) < 1e-6


def fsdp1(rank, use_orig_params):
    net = FullyShardedDataParallel(network(), use_orig_params=use_orig_params, device_id=torch.device("cpu"))
    oo.POGO(net.parameters(), lr=0.1)


def deepspeed(rank):
    param = nn.Parameter(torch.empty(0))
    param.ds_id, param.ds_shape = 7, torch.Size((8, 8))
    oo.POGO([param], lr=0.1)


def megatron(rank):
    param = nn.Parameter(torch.zeros(32))
    param.main_grad = torch.zeros(32)
    oo.POGO([param], lr=0.1)


def flat(rank):
    oo.POGO([nn.Parameter(torch.zeros(32))], lr=0.1)


def offloaded(rank):
    """What a mesh with NCCL alone is to parameters on the CPU: a group that serves another device."""
    mesh = DeviceMesh.from_group(dist.new_group(backend="cuda:gloo"), "cpu")
    local = start(WIDE, 0, torch.float32)[:, 20 * rank : 20 * rank + 20].contiguous()
    oo.POGO([("w", nn.Parameter(DTensor.from_local(local, mesh, [Shard(1)], run_check=False)))], lr=0.1)


def infinite(rank):
    x = place(start(WIDE, 0, torch.float32), WIDE)
    if rank == 1:
        x.to_local()[0, 0] = torch.inf
    oo.POGO([("w", nn.Parameter(x))], lr=0.1)


REFUSED = {
    "FSDP1": (fsdp1, (False,), "is flattened by FSDP1", "fully_shard"),
    "FSDP1, original parameters": (fsdp1, (True,), "is flattened by FSDP1", "fully_shard"),
    "DeepSpeed": (deepspeed, (), "is flattened by DeepSpeed ZeRO", "fully_shard"),
    "Megatron": (megatron, (), "is flattened by Megatron's distributed optimizer", "fully_shard"),
    "flat": (flat, (), "has 1 dims", "fully_shard"),
    "offloaded": (
        offloaded,
        (),
        "lies on cpu, but the process group of its mesh serves cuda alone",
        "cpu:gloo,cuda:nccl",
    ),
    "infinite": (infinite, (), "parameter 'w' (4×40) is not finite", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_is_wrong_and_what_to_do(two, name):
    function, args, wrong, cure = REFUSED[name]
    for right, (message, _) in two.attempt(function, *args):
        assert not right
        assert message.startswith("ValueError: ")
        assert wrong in message
        assert cure in message
        assert "\n" not in message
