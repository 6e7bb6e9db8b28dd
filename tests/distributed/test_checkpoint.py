"""Checkpoints of torch.distributed.checkpoint move between world sizes, and to and from a single process."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import orthoptim as oo
from tests.conformance.methods import point
from tests.distributed.cases import gradient, mesh_of
from tests.sampling import first
from tests.worked.base import AdaGradNorm
from tests.worked.method import LeapAndPolish

# name: shape and the dim that is sharded; on one rank all are whole
SHAPES = {
    "local": ((9, 3, 5), 0),
    "long": ((5, 90), 1),
    "short": ((3, 97), 0),
    "near": ((9, 9), 0),
    "batch": ((4, 6, 8), 2),
    "heads": ((24, 8), 0),
    "grouped": ((16, 8), 0),
    "bias": ((7,), 0),
}
VIEWS = {"heads": oo.View(heads=8), "grouped": oo.View(split=(8, 4, 4))}
METHODS = {
    "pogo": lambda groups: oo.POGO(groups, lr=0.1),
    "pogo-adam": lambda groups: oo.POGO(groups, lr=0.02, base=oo.Adam()),
    "pogo-bb": lambda groups: oo.POGO(groups, lr=0.1, base=oo.BB()),
    "rsdm": lambda groups: oo.RSDM(groups, lr=0.1, r=2),
    "worked": lambda groups: LeapAndPolish(groups, lr=0.1, base=AdaGradNorm()),
}


class Net(nn.Module):
    """Parameters of all kinds, sharded over ``world`` ranks, or plain where that is 0."""

    def __init__(self, world: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        for i, (name, (shape, dim)) in enumerate(SHAPES.items()):
            view = VIEWS.get(name, "matrix")
            x = torch.zeros(shape) if len(shape) == 1 else point(*shape, view=view, seed=10 * seed + i).detach()
            x = x.to(dtype)
            if world:
                x = distribute_tensor(x, mesh_of((world,)), [Shard(dim)], src_data_rank=None)
            self.register_parameter(name, nn.Parameter(x))


def build(world: int, seed: int, method: str, dtype: torch.dtype):
    net = Net(world, seed, dtype)
    patterns = {name: VIEWS.get(name, "matrix") for name in SHAPES if name != "bias"}
    rest = {"algorithm": "sgd", "lr": 0.1, "momentum": 0.9} if method == "pogo-bb" else {"algorithm": "adamw"}
    return net, METHODS[method](oo.param_groups(net, patterns, rest=rest))


@torch.no_grad()
def train(net: Net, opt: torch.optim.Optimizer, steps: range) -> None:
    for t in steps:
        for i, param in enumerate(net.parameters()):
            generator = torch.Generator().manual_seed(i)
            goal = torch.randn(param.shape, generator=generator).to(param.dtype)
            if isinstance(param, DTensor):
                goal = distribute_tensor(goal, param.device_mesh, param.placements, src_data_rank=None)
                grad = DTensor.from_local(
                    gradient(param.to_local(), goal.to_local(), t),
                    param.device_mesh,
                    param.placements,
                    shape=param.shape,
                    stride=param.stride(),
                )
            else:
                grad = gradient(param, goal, t)
            param.grad = grad
        opt.step()


def whole(net: Net) -> list[torch.Tensor]:
    return [p.detach().full_tensor() if isinstance(p, DTensor) else p.detach().clone() for p in net.parameters()]


def begin(rank, world, folder, method, dtype):
    """Five steps, a checkpoint, and five more."""
    net, opt = build(world, 0, method, dtype)
    train(net, opt, range(5))
    dcp.save({"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, opt)}, checkpoint_id=folder)
    train(net, opt, range(5, 10))
    return whole(net)


def resume(rank, world, folder, method, dtype):
    """Others start elsewhere, load, and take the last five steps."""
    net, opt = build(world, 1, method, dtype)
    model, optim = get_model_state_dict(net), get_optimizer_state_dict(net, opt)
    dcp.load({"model": model, "optim": optim}, checkpoint_id=folder, no_dist=not world)
    set_model_state_dict(net, model)
    set_optimizer_state_dict(net, opt, optim)
    train(net, opt, range(5, 10))
    return whole(net)


def difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max(float((x.float() - y.float()).abs().max()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_saved_on_two_resumes_on_two_and_none(two, tmp_path, method):
    """Every method; what four ranks add is tested with one of them, and with all by ``make soak``."""
    ends = two.run(begin, 2, tmp_path / "two", method, torch.float32)
    again = two.run(resume, 2, tmp_path / "two", method, torch.float32)
    assert all(torch.equal(a, b) for end, got in zip(ends, again, strict=True) for a, b in zip(end, got, strict=True))
    assert difference(ends[0], resume(0, 0, tmp_path / "two", method, torch.float32)) <= 1e-6


@pytest.mark.parametrize("method", first(1, METHODS))
def test_saved_on_four_resumes_on_four_two_and_none(worlds, tmp_path, method):
    dtype = torch.float32
    ends = worlds(4).run(begin, 4, tmp_path / "four", method, dtype)
    again = worlds(4).run(resume, 4, tmp_path / "four", method, dtype)
    assert all(torch.equal(a, b) for end, got in zip(ends, again, strict=True) for a, b in zip(end, got, strict=True))
    assert difference(ends[0], worlds(2).run(resume, 2, tmp_path / "four", method, dtype)[0]) <= 1e-6
    assert difference(ends[0], resume(0, 0, tmp_path / "four", method, dtype)) <= 1e-6


def test_shrinks_to_one_rank_and_grows_from_two_to_four(worlds, tmp_path):
    dtype = torch.float32
    end = worlds(2).run(begin, 2, tmp_path / "two", "pogo", dtype)[0]
    assert difference(end, worlds(4).run(resume, 4, tmp_path / "two", "pogo", dtype)[0]) <= 1e-6
    assert difference(end, worlds(1).run(resume, 1, tmp_path / "two", "pogo", dtype)[0]) <= 1e-6


def test_half_precision_keeps_its_masters(worlds, tmp_path):
    dtype = torch.bfloat16
    ends = worlds(4).run(begin, 4, tmp_path / "four", "pogo", dtype)
    again = worlds(4).run(resume, 4, tmp_path / "four", "pogo", dtype)
    assert all(torch.equal(a, b) for a, b in zip(ends[0], again[0], strict=True))
    assert difference(ends[0], worlds(2).run(resume, 2, tmp_path / "four", "pogo", dtype)[0]) <= 1e-2


def from_single(rank, world, state, params):
    """A sharded optimizer takes the state_dict of a plain one as it is."""
    net, opt = build(world, 1, "pogo", torch.float32)
    with torch.no_grad():
        for mine, param in zip(net.parameters(), params, strict=True):
            mine.copy_(distribute_tensor(param, mine.device_mesh, mine.placements, src_data_rank=None))
    opt.load_state_dict(copy.deepcopy(state))
    train(net, opt, range(5, 10))
    return whole(net)


def to_single(rank, world):
    net, opt = build(world, 0, "pogo", torch.float32)
    train(net, opt, range(5))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    saved = get_model_state_dict(net, options=options), get_optimizer_state_dict(net, opt, options=options)
    saved = copy.deepcopy(saved)  # on the CPU, tensors that are not sharded are those of the run itself
    train(net, opt, range(5, 10))
    return saved, whole(net)


def test_from_the_state_dict_of_a_single_process(two):
    net, opt = build(0, 0, "pogo", torch.float32)
    train(net, opt, range(5))
    state, params = copy.deepcopy(opt.state_dict()), [p.detach().clone() for p in net.parameters()]
    train(net, opt, range(5, 10))
    for got in two.run(from_single, 2, state, params):
        assert difference(whole(net), got) <= 1e-6


def test_to_the_state_dict_of_a_single_process(two, tmp_path):
    (model, optim), end = two.run(to_single, 2)[0]
    torch.save(optim, tmp_path / "optim.pt")
    optim = torch.load(tmp_path / "optim.pt", weights_only=True)
    net, opt = build(0, 1, "pogo", torch.float32)
    set_model_state_dict(net, model)
    set_optimizer_state_dict(net, opt, optim)
    train(net, opt, range(5, 10))
    assert difference(end, whole(net)) <= 1e-6


def state_is_there(rank):
    """Before the first step, so that a checkpoint can be read into it; and placed as the parameters are."""
    net, opt = build(4, 0, "pogo", torch.float32)
    before = whole(net)
    get_optimizer_state_dict(net, opt)
    unmoved = all(torch.equal(a, b) for a, b in zip(before, whole(net), strict=True))
    kinds = {}
    for name, param in net.named_parameters():
        for key, value in opt.state[param].items():
            kinds[name, key] = str(value.placements) if isinstance(value, DTensor) else "plain"
    return unmoved, kinds


def test_state_is_created_eagerly_and_placed_like_its_parameter(four):
    for unmoved, kinds in four.run(state_is_there):
        assert unmoved
        assert kinds["long", "exp_avg"] == "(Shard(dim=1),)"
        assert kinds["long", "exp_avg_sq"] == kinds["long", "num_updates"] == kinds["long", "step"] == "plain"
        assert kinds["local", "exp_avg_sq"] == kinds["local", "num_updates"] == "(Shard(dim=0),)"
        assert kinds["batch", "exp_avg_sq"] == "plain"
        assert kinds["bias", "exp_avg"] == "(Shard(dim=0),)"
