"""torchtitan's own OptimizersContainer with POGO beside AdamW, under FSDP2: what it saves resumes bit for bit."""

from collections import OrderedDict

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

import orthoptim as oo


@pytest.fixture
def titan():
    module = "torchtitan.components.optimizer"
    return pytest.importorskip(
        module, reason="torchtitan is not installed: pip install torchtitan", exc_type=ImportError
    )


def pogo(groups):
    """POGO from groups with torchtitan's options, of which two choose between implementations of torch's optimizers."""
    return oo.POGO([{k: v for k, v in group.items() if k not in ("foreach", "fused")} for group in groups])


def make(sizes=((8, 8), (16, 8), (8, 16))):
    """Two parts of a model, as pipeline stages are, and the container of their optimizers."""
    from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

    class Container(OptimizersContainer):
        @staticmethod
        def _resolve_optimizer_factory(name):
            return pogo if name == "POGO" else OptimizersContainer._resolve_optimizer_factory(name)

    mesh, parts = init_device_mesh("cpu", (2,)), []
    for seed in range(2):
        torch.manual_seed(seed)
        layers = nn.Sequential(*(nn.Linear(columns, rows) for rows, columns in sizes))
        part = nn.Sequential(OrderedDict({f"stage{seed}": layers}))
        oo.orthogonalize_(part, {"*weight": "matrix"}, init="random")
        parts.append(fully_shard(part, mesh=mesh))
    groups = [
        ParamGroupConfig(pattern=r"weight$", optimizer_name="POGO", optimizer_kwargs={"lr": 0.1}),
        ParamGroupConfig(pattern=r"bias$", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-2}),
    ]
    config = Container.Config(param_groups=groups, implementation="foreach")
    return parts, Container(config, model_parts=parts)


def train(parts, opt, steps):
    for t in steps:
        generator = torch.Generator().manual_seed(t)
        for param in (param for part in parts for param in part.parameters()):
            grad = torch.randn(param.shape, generator=generator)
            param.grad = distribute_tensor(grad, param.device_mesh, param.placements, src_data_rank=None)
        opt.step()
        opt.zero_grad()


def resumed(rank, folder):
    """Whether a run that is saved and loaded after two steps ends as one that goes on, and its number of saved keys."""
    parts, opt = make()
    train(parts, opt, range(2))
    state = {"opt": opt.state_dict(), **{f"part{i}": part.state_dict() for i, part in enumerate(parts)}}
    dcp.save(state, checkpoint_id=folder)
    train(parts, opt, range(2, 4))
    twins, other = make()
    loaded = {"opt": other.state_dict(), **{f"part{i}": part.state_dict() for i, part in enumerate(twins)}}
    dcp.load(loaded, checkpoint_id=folder)
    for i, part in enumerate(twins):
        part.load_state_dict(loaded[f"part{i}"])
    other.load_state_dict(loaded["opt"])
    train(twins, other, range(2, 4))
    pairs = zip(
        (param for part in parts for param in part.parameters()),
        (param for part in twins for param in part.parameters()),
        strict=True,
    )
    names = [key for key in state["opt"] if key.endswith(".num_updates")]
    return all(torch.equal(a.to_local(), b.to_local()) for a, b in pairs), len(names)


def test_torchtitans_container_resumes(titan, two, tmp_path):
    assert two.run(resumed, str(tmp_path)) == [(True, 6)] * 2
