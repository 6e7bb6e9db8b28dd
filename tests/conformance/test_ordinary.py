"""Ordinary groups beside constrained ones: exactly torch's AdamW and SGD."""

import pytest
import torch

from tests.conformance.methods import clones, every_method, point, set_gradients, steps

ORDINARY = [
    ("adamw", {}),
    ("adamw", {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1, "amsgrad": True}),
    ("adamw", {"foreach": False, "maximize": True}),
    ("adamw", {"fused": True}),
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "nesterov": True, "maximize": True, "foreach": False}),
]


def ordinary_parameters():
    return [torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(5))]


@every_method
@pytest.mark.parametrize(("algorithm", "options"), ORDINARY)
def test_an_ordinary_group_is_torch_bit_for_bit(make, algorithm, options):
    constrained, mine = point(4, 6), ordinary_parameters()
    theirs = clones(mine)
    reference = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[algorithm](theirs, lr=0.01, **options)
    opt = make([{"params": [constrained]}, {"params": mine, "algorithm": algorithm, "lr": 0.01, **options}])
    for t in range(5):
        set_gradients([*mine, constrained], t)
        set_gradients(theirs, t)
        opt.step()
        reference.step()
    for one, two in zip(mine, theirs, strict=True):
        assert torch.equal(one, two)
    assert len(opt.drift()) == 1


@every_method
@pytest.mark.parametrize(("algorithm", "options"), ORDINARY)
def test_resume_with_an_ordinary_group(make, algorithm, options):
    params = [point(4, 6), *ordinary_parameters()]

    def build(values):
        rest = {"params": values[1:], "algorithm": algorithm, **options}
        return make([{"params": values[:1]}, rest])

    opt = build(params)
    steps(opt, params, 3)
    others = clones(params)
    other = build(others)
    other.load_state_dict(opt.state_dict())
    steps(opt, params, 2, 3)
    steps(other, others, 2, 3)
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)


@every_method
def test_an_ordinary_group_has_torch_defaults_and_nothing_else(make):
    opt = make([{"params": [point(4, 6)]}, {"params": ordinary_parameters(), "algorithm": "adamw"}])
    group = opt.param_groups[1]
    assert group["lr"] == 1e-3
    assert group["weight_decay"] == 1e-2
    assert not {"view", "side", "base", "landing"} & group.keys()


@every_method
def test_bad_options_of_an_ordinary_group(make):
    for options in (
        {"lr": -1.0},
        {"betas": (1.5, 0.9)},
        {"betas": (0.9,)},
        {"weight_decay": -1.0},
        {"weight_decay": float("inf")},
        {"eps": float("nan")},
        {"eps": "1e-8"},
        {"maximize": "no"},
        {"amsgrad": None},
        {"foreach": torch.ones(2)},
        {"fused": 0.5},
    ):
        with pytest.raises(ValueError, match="Invalid"):
            make([{"params": [point(4, 6)]}, {"params": ordinary_parameters(), "algorithm": "adamw", **options}])
