"""Under torch's own engines: DDP, FSDP2, HSDP and tensor parallelism, with ordinary parameters beside."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import orthoptim as oo
from tests.distributed.cases import mesh_of
from tests.distributed.networks import alone, max_error, network, optimizer, rows_of, train


def fsdp(rank, placement, shape):
    model = network()
    chosen = oo.long_dim_placement if placement == "long" else None
    fully_shard(model, mesh=mesh_of(shape), shard_placement_fn=chosen)
    opt = optimizer(model)
    train(model, opt, 20, rows_of(rank, dist.get_world_size()))
    locals_ = [param.to_local().detach() for param in model.parameters()]
    drift = opt.drift()
    return max_error(model, alone(20)), [plan.strategy for plan in opt.plan()], locals_, drift[0].max_distance


@pytest.mark.parametrize(
    ("placement", "strategies"),
    [("default", ["exchange", "whole", "two-phase"]), ("long", ["two-phase", "whole", "two-phase"])],
)
def test_fully_shard(two, placement, strategies):
    for difference, used, _, distance in two.run(fsdp, placement, (2,)):
        assert difference < 1e-5
        assert used == strategies
        assert distance < 1e-5


def test_hsdp_replicas_are_bit_identical(four):
    answers = four.run(fsdp, "default", (2, 2))
    for difference, *_ in answers:
        assert difference < 1e-5
    for a, b in ((0, 2), (1, 3)):  # the same shards
        assert all(torch.equal(x, y) for x, y in zip(answers[a][2], answers[b][2], strict=True))


def tensor_parallel(rank):
    model = network()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh_of((2,)), plan)
    opt = optimizer(model)
    train(model, opt, 20)
    return max_error(model, alone(20)), [plan.strategy for plan in opt.plan()]


def test_tensor_parallel(two):
    for difference, strategies in two.run(tensor_parallel):
        assert difference < 1e-5
        assert sorted(strategies) == ["exchange", "local", "whole"]


def ddp(rank, steps):
    model = network()
    wrapped = DistributedDataParallel(model)
    opt = optimizer(model)
    train(wrapped, opt, steps, rows_of(rank, dist.get_world_size()))
    return [param.detach() for param in model.parameters()], [plan.strategy for plan in opt.plan()]


@pytest.mark.parametrize("world", [2, 4])
def test_ddp_replicas_are_bit_identical_after_200_steps(worlds, world):
    first, *others = worlds(world).run(ddp, 200)
    assert set(first[1]) == {"local"}
    for params, _ in others:
        assert all(torch.equal(a, b) for a, b in zip(first[0], params, strict=True))


def half(rank, mixed):
    """bfloat16 parameters with masters, or float32 ones that FSDP2 casts; against one process."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = network() if mixed else network().bfloat16()
    single = copy.deepcopy(model)
    fully_shard(model, mesh=mesh_of((2,)), mp_policy=policy if mixed else MixedPrecisionPolicy())
    opt, reference = optimizer(model), optimizer(single)
    goals = [
        torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) for i, p in enumerate(single.parameters())
    ]
    for _ in range(20):  # gradients of the parameters as they are: rounding must not depend on the world
        for param, other, goal in zip(model.parameters(), single.parameters(), goals, strict=True):
            other.grad = goal.to(other.dtype)
            chunk = goal.chunk(2)[rank] if goal.shape[0] > 1 else goal
            param.grad = DTensor.from_local(
                chunk.to(param.dtype), param.device_mesh, param.placements, shape=param.shape, stride=param.stride()
            )
        opt.step()
        reference.step()
    masters = []
    for param, other in zip(model.parameters(), single.parameters(), strict=True):
        if "master" in reference.state[other]:
            difference = opt.state[param]["master"].full_tensor() - reference.state[other]["master"]
            masters.append((opt.state[param]["master"].dtype, float(difference.abs().max())))
    params = [(p.dtype, p.full_tensor()) for p in model.parameters()]
    error = max(float((a - b).abs().max()) for (_, a), b in zip(params, single.parameters(), strict=True))
    if mixed:
        train(model, opt, 2, rows_of(rank, 2))
    return masters, error, {dtype for dtype, _ in params}, opt.drift()[0].max_distance


def test_bfloat16_parameters_have_float32_masters(two):
    for masters, error, dtypes, _ in two.run(half, False):
        assert dtypes == {torch.bfloat16}
        assert len(masters) == 3
        assert all(dtype == torch.float32 and difference < 1e-6 for dtype, difference in masters)
        assert error < 1e-2  # one unit in the last place


def test_mixed_precision_of_fsdp(two):
    for masters, error, dtypes, distance in two.run(half, True):
        assert dtypes == {torch.float32}
        assert masters == []
        assert error < 1e-6
        assert distance < 1e-5
