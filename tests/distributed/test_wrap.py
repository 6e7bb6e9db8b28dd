"""wrap of a model that is sharded after the optimizer was built."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import orthoptim as oo
from tests.distributed.cases import mesh_of
from tests.distributed.networks import PATTERNS, max_error, network, rows_of, train


def wrapped(model):
    return oo.wrap(torch.optim.NAdam(model.parameters(), lr=0.05), PATTERNS, model=model)


def sharded_later(rank):
    """As accelerate does: build the optimizer, shard the model, put the shards into the param groups by name."""
    single, model = network(), network()
    reference, opt = wrapped(single), wrapped(model)
    names = {param: name for name, param in model.named_parameters()}
    fully_shard(model, mesh=mesh_of((2,)))
    shards = dict(model.named_parameters())
    for group in opt.param_groups:
        group["params"] = [shards[names[param]] for param in group["params"]]
    rows = rows_of(rank, dist.get_world_size())
    train(model, opt, 10, rows)
    train(single, reference, 10)
    expected = [param.detach() for param in single.parameters()]
    distances = [float(oo.distance(param)) for name, param in model.named_parameters() if name in PATTERNS]
    return max_error(model, expected), opt.drift(), distances


def test_shards_that_replace_parameters_are_constrained(two):
    for difference, drift, distances in two.run(sharded_later):
        assert difference < 1e-5
        assert [row.name for row in drift] == list(PATTERNS)
        assert [row.max_distance for row in drift] == pytest.approx(distances, rel=1e-3)
        assert max(distances) < 1e-2


def sharded_too_late(rank):
    model = network()
    opt = wrapped(model)
    train(model, opt, 1)
    names = {param: name for name, param in model.named_parameters()}
    fully_shard(model, mesh=mesh_of((2,)))
    shards = dict(model.named_parameters())
    for group in opt.param_groups:
        group["params"] = [shards[names[param]] for param in group["params"]]
    opt.step()


def test_shards_that_replace_parameters_after_a_step_are_an_error(two):
    for right, (message, _) in two.attempt(sharded_too_late):
        assert not right
        assert message.startswith("RuntimeError: parameter '0.weight' (6×40) was replaced in the param groups of NAdam")
