"""What AdamW can do with sharded parameters after a step, ours can: be copied, saved and loaded by every tool."""

import copy
import io
import tempfile
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import orthoptim as oo
from tests.distributed.cases import mesh_of

CONSTRAINED = ("near", "twin", "long", "tall", "heads", "experts")


class Net(nn.Module):
    """Near-square, long and tall matrices, two of a kind so that they share a bucket, a batch, a bias and a scale."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        shapes = {"near": (8, 8), "twin": (8, 8), "long": (4, 64), "tall": (64, 4), "heads": (4, 6, 10)}
        for i, (name, shape) in enumerate({**shapes, "experts": (4, 3, 5)}.items()):
            generator = torch.Generator().manual_seed(i)
            x = oo.orthogonalize_(torch.empty(shape), init="random", generator=generator)
            self.register_parameter(name, nn.Parameter(x.to(dtype)))
        self.bias = nn.Parameter(torch.zeros(8, dtype=dtype))
        self.scale = nn.Parameter(torch.ones(8, dtype=dtype))


def placed(net, mesh, **placements):
    for name, placement in placements.items():
        value = distribute_tensor(getattr(net, name).detach(), mesh, placement, src_data_rank=None)
        setattr(net, name, nn.Parameter(value))
    return net


def grid(first):
    """A mesh of two dims over all ranks."""
    world = dist.get_world_size()
    return mesh_of((first, world // first))


def tensor_parallel(net, mesh, *before):
    """Rows or columns of some parameters; the others stay plain tensors, or replicated on the mesh before."""
    return placed(
        net,
        mesh,
        near=[*before, Shard(0)],
        twin=[*before, Shard(0)],
        long=[*before, Shard(1)],
        tall=[*before, Shard(1)],
    )


MODELS = {
    "FSDP2": lambda: fully_shard(Net(), mesh=mesh_of((dist.get_world_size(),))),
    "TP": lambda: tensor_parallel(Net(), mesh_of((dist.get_world_size(),))),
    "FSDP2+TP": lambda: fully_shard(
        tensor_parallel(_of(Net, "near", "twin", "long", "tall"), grid(2)["b"]), mesh=grid(2)["a"]
    ),
    "HSDP": lambda: fully_shard(Net(), mesh=grid(2)),
    "experts": lambda: placed(Net(), mesh_of((dist.get_world_size(),)), experts=[Shard(0)], heads=[Shard(0)]),
    "ignored_params": lambda: _ignoring(Net()),
    "bfloat16": lambda: fully_shard(Net(torch.bfloat16), mesh=mesh_of((dist.get_world_size(),))),
    "replicated": lambda: placed(Net(), mesh_of((dist.get_world_size(),)), near=[Replicate()], long=[Shard(1)]),
}


def _of(make, *kept):
    net = make()
    for name in [name for name, _ in net.named_parameters() if name not in kept]:
        delattr(net, name)
    return net


def _ignoring(net):
    return fully_shard(net, mesh=mesh_of((dist.get_world_size(),)), ignored_params={net.twin, net.bias})


def orthoptimizer(make):
    def build(net):
        named = dict(net.named_parameters())
        rest = [(name, param) for name, param in named.items() if name not in CONSTRAINED]
        constrained = [(name, param) for name, param in named.items() if name in CONSTRAINED]
        return make([{"params": constrained}, *([{"params": rest, "algorithm": "adamw", "lr": 0.01}] if rest else [])])

    return build


def wrapped(net):
    constrained = [(name, param) for name, param in net.named_parameters() if name in CONSTRAINED]
    return oo.wrap(torch.optim.AdamW(net.parameters(), lr=0.01), constrained)


OPTIMIZERS = {  # with momentum, see test_full_state_dicts_need_an_entry_of_some_dim
    "AdamW": lambda net: torch.optim.AdamW(net.named_parameters(), lr=0.01),
    "torch SGD": lambda net: torch.optim.SGD(net.named_parameters(), lr=0.01),
    "SGD": orthoptimizer(lambda groups: oo.POGO(groups, lr=0.1, base=oo.SGD())),
    "POGO": orthoptimizer(lambda groups: oo.POGO(groups, lr=0.1)),
    "wrap": wrapped,
    "POGO, Muon": orthoptimizer(lambda groups: oo.POGO(groups, lr=0.1, base=oo.Muon())),
    "RGD": orthoptimizer(lambda groups: oo.RGD(groups, lr=0.1, base=oo.SGD(momentum=0.9))),
    "RSDM": orthoptimizer(lambda groups: oo.RSDM(groups, lr=0.1, r=2, base=oo.SGD(momentum=0.9))),
    "Landing": orthoptimizer(lambda groups: oo.Landing(groups, lr=0.1, base=oo.SGD(momentum=0.9))),
    "LandingPC": orthoptimizer(lambda groups: oo.LandingPC(groups, lr=0.1)),
    "SLPG": orthoptimizer(lambda groups: oo.SLPG(groups, lr=0.1, base=oo.SGD(momentum=0.9))),
}

WITHOUT_MOMENTUM = ("torch SGD", "SGD")


@torch.no_grad()
def train(net, opt, steps):
    for t in steps:
        for i, param in enumerate(net.parameters()):
            noise = torch.randn(param.shape, generator=torch.Generator().manual_seed(100 * t + i)).to(param.dtype)
            if isinstance(param, DTensor):
                noise = distribute_tensor(noise, param.device_mesh, param.placements, src_data_rank=None)
            param.grad = noise
        opt.step()


def values(net):
    return [p.detach().full_tensor() if isinstance(p, DTensor) else p.detach().clone() for p in net.parameters()]


def deepcopied(net, opt, build, folder):
    return copy.deepcopy((net, opt))


def pickled(net, opt, build, folder):
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    net, opt = build()
    net.load_state_dict(loaded["net"])
    opt.load_state_dict(loaded["opt"])
    return net, opt


def by_dcp(net, opt, build, folder, save=dcp.save, **options):
    options = StateDictOptions(**options)
    state = {"net": get_model_state_dict(net), "opt": get_optimizer_state_dict(net, opt, options=options)}
    saving = save(state, checkpoint_id=folder)
    if hasattr(saving, "result"):
        saving.result()
    net, opt = build()
    state = {"net": get_model_state_dict(net), "opt": get_optimizer_state_dict(net, opt, options=options)}
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(net, state["net"])
    set_optimizer_state_dict(net, opt, state["opt"], options=options)
    return net, opt


def in_the_background(net, opt, build, folder):
    return by_dcp(net, opt, build, folder, dcp.async_save)


def flattened(net, opt, build, folder):
    return by_dcp(net, opt, build, folder, flatten_optimizer_state_dict=True)


def full(net, opt, build, folder):
    options = StateDictOptions(full_state_dict=True)
    state = copy.deepcopy(
        [get_model_state_dict(net, options=options), get_optimizer_state_dict(net, opt, options=options)]
    )
    net, opt = build()
    set_model_state_dict(net, state[0], options=options)
    set_optimizer_state_dict(net, opt, state[1], options=options)
    return net, opt


TOOLS = {
    "deepcopy": deepcopied,
    "torch.save": pickled,
    "DCP": by_dcp,
    "async_save": in_the_background,
    "flattened": flattened,
    "full": full,
}


def outcome(name, model, tool, folder):
    """Nothing, if a copy goes on as the original does; else what went wrong."""

    def build():
        net = MODELS[model]()
        return net, OPTIMIZERS[name](net)

    try:
        net, opt = build()
        train(net, opt, range(2))
        twin, other = TOOLS[tool](net, opt, build, folder)
        train(net, opt, range(2, 4))
        train(twin, other, range(2, 4))
        names = [key for key, _ in net.named_parameters()]
        pairs = zip(names, values(net), values(twin), strict=True)
        return [f"{key} goes another way" for key, a, b in pairs if not torch.equal(a, b)]
    except Exception:
        return [traceback.format_exc()]


def outcomes(rank, name, cases, folder):
    return {case: outcome(name, *case, "-".join((folder, name, *case))) for case in cases}


def check(world, name, tools=tuple(TOOLS)):
    """AdamW is asked for the cases in which ours fails: where it fails, too, the tool is to blame."""
    cases = [(model, tool) for model in MODELS for tool in tools]
    with tempfile.TemporaryDirectory() as folder:
        ours = world.run(outcomes, name, cases, f"{folder}/")
        failed = [case for case in cases if any(of_rank[case] for of_rank in ours)]
        control = world.run(outcomes, "AdamW", failed, f"{folder}/")
    wrong = {
        (rank, *case): of_rank[case]
        for rank, of_rank in enumerate(ours)
        for case in failed
        if of_rank[case] and not control[rank][case]
    }
    assert not wrong, "\n".join(f"{case}: {found[0]}" for case, found in list(wrong.items())[:3])
    assert len(failed) <= 0.4 * len(cases), "the control fails itself"


@pytest.mark.parametrize(("name", "tools"), [("POGO", tuple(TOOLS)), ("wrap", ("deepcopy", "torch.save", "DCP"))])
def test_what_adamw_passes_ours_passes(two, name, tools):
    check(two, name, tools)


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "AdamW" and name not in WITHOUT_MOMENTUM])
@pytest.mark.parametrize("world", [2, 4])
def test_what_adamw_passes_every_method_passes(worlds, world, name):
    check(worlds(world), name)


def full_without_momentum(rank, name):
    return outcome(name, "FSDP2+TP", "full", "")


def test_full_state_dicts_need_an_entry_of_some_dim(four):
    """DCP reads the device from a state tensor that is not 0-d: torch's SGD without momentum has none either."""
    for name in WITHOUT_MOMENTUM:
        for found in four.run(full_without_momentum, name):
            assert "Expected device to be set" in found[0]
