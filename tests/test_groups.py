"""Patterns, param groups and initial values."""

import re

import pytest
import torch
from torch import nn

import orthoptim as oo


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.conv2 = nn.Conv2d(4, 4, 3)
        self.attn = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 2)


PATTERNS = {"conv*.weight": "kernels", "attn.*": "matrix"}


def test_the_three_lines():
    model = Net()
    oo.orthogonalize_(model, PATTERNS)
    opt = oo.POGO(
        oo.param_groups(model, PATTERNS, lr=0.5, base=oo.VAdam(), rest={"algorithm": "adamw", "lr": 1e-3}),
    )
    x = torch.randn(2, 3, 8, 8)
    for _ in range(3):
        opt.zero_grad()
        features = model.conv2(model.conv1(x)).flatten(2).mean(1)[:, :8]
        model.head(model.attn(features)).square().mean().backward()
        opt.step()
    report = opt.drift()
    assert [entry.matrices for entry in report] == [4 * 3 + 4 * 4, 1]
    assert max(entry.max_distance for entry in report) < 0.1
    assert [group["param_names"] for group in opt.param_groups] == [
        ["conv1.weight", "conv2.weight"],
        ["attn.weight"],
        ["conv1.bias", "conv2.bias", "head.weight", "head.bias"],
    ]


def test_the_first_match_counts_and_dicts_override():
    model = Net()
    groups = oo.param_groups(
        model,
        {"conv1.weight": {"view": "filters", "lr": 0.1}, "conv*.weight": "kernels"},
        lr=0.5,
        rest=None,
        landing="strict",
    )
    assert [group["param_names"] for group in groups] == [["conv1.weight"], ["conv2.weight"]]
    assert [group["lr"] for group in groups] == [0.1, 0.5]
    assert [group["view"] for group in groups] == ["filters", "kernels"]
    assert all(group["landing"] == "strict" for group in groups)


def test_frozen_parameters_are_stepped_once_they_are_thawed():
    model = oo.orthogonalize_(Net(), {"attn.weight": "matrix"})
    model.head.requires_grad_(False)
    rest = {"algorithm": "adamw", "lr": 0.1}
    opt = oo.POGO(oo.param_groups(model, {"attn.weight": "matrix"}, lr=0.1, rest=rest))
    before = model.head.weight.detach().clone()
    for thawed in (False, True):
        model.head.requires_grad_(thawed)
        opt.zero_grad()
        model.head(model.attn(torch.randn(4, 8))).square().sum().backward()
        opt.step()
        assert torch.equal(model.head.weight, before) != thawed


def test_parameters_that_nobody_steps_are_warned_of():
    model = Net()
    with pytest.warns(UserWarning, match=r"leaves trainable parameters out \(6: 'conv1.weight', .*rest=None") as caught:
        groups = oo.param_groups(model, {"attn.weight": "matrix"}, lr=0.1)
    assert len(groups) == 1
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("patterns", "options"),
    [
        ({"attn.weight": "matrix"}, {"rest": None}),
        ({"attn.weight": "matrix"}, {"rest": {"algorithm": "sgd"}}),
        ({"attn.weight": "matrix", "head.weight": "matrix"}, {}),  # all others are frozen below
    ],
)
def test_there_is_no_warning_where_nothing_is_forgotten(patterns, options, recwarn):
    model = Net().requires_grad_(False)
    for each in (model.attn, model.head):
        each.weight.requires_grad_()
    oo.param_groups(model, patterns, lr=0.1, **options)
    assert not recwarn


@pytest.mark.parametrize("rest", ["adamw", [("lr", 0.1)]])
def test_rest_is_a_dict_or_none(rest):
    with pytest.raises(TypeError, match="rest must be a dict such as"):
        oo.param_groups(Net(), {"attn.weight": "matrix"}, rest=rest)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ({"weigth_decay": 0.1}, "group 1: unknown option 'weigth_decay'; did you mean 'weight_decay'?"),
        ({"learning_rate": 0.1}, "group 1: unknown option 'learning_rate'; did you mean 'lr'?"),
        ({"LR": 0.1}, "group 1: unknown option 'LR'; did you mean 'lr'?"),
        ({"wd": 0.1}, "group 1: unknown option 'wd'; did you mean 'weight_decay'?"),
        ({"momentum": 0.9}, "group 1: 'momentum' is not an option of algorithm 'adamw'"),
        ({"algorithm": "sgd", "betas": (0.9, 0.9)}, "group 1: 'betas' is not an option of algorithm 'sgd'"),
        ({"view": "matrix"}, "group 1: 'view' is not an option of algorithm 'adamw'"),
        ({"betas": (0.9,)}, "Invalid betas value: (0.9,)"),
    ],
)
def test_rest_refuses_options_that_would_have_no_effect(rest, message):
    model = oo.orthogonalize_(Net(), {"attn.weight": "matrix"})
    groups = oo.param_groups(model, {"attn.weight": "matrix"}, lr=0.1, rest=rest)
    with pytest.raises(ValueError, match=re.escape(message)):
        oo.POGO(groups)


def test_keys_of_users_and_schedulers_are_their_own_business():
    model = oo.orthogonalize_(Net(), {"attn.weight": "matrix"})
    rest = {"name": "others", "initial_lr": 1.0, "max_lr": 1.0}
    opt = oo.POGO(oo.param_groups(model, {"attn.weight": "matrix"}, lr=0.1, rest=rest))
    assert opt.param_groups[1]["name"] == "others"


def names(group):
    return group["param_names"]


@pytest.mark.parametrize("exclude", [None, {"view": None}])
def test_none_leaves_parameters_to_the_rest(exclude):
    model = Net()
    constrained, rest = oo.param_groups(model, {"conv1.*": exclude, "conv*.weight": "kernels"}, rest={})
    assert names(constrained) == ["conv2.weight"]
    assert {"conv1.weight", "conv1.bias"} <= set(names(rest))
    before = model.conv1.weight.detach().clone()
    oo.orthogonalize_(model, {"conv1.*": exclude, "conv*.weight": "kernels"})
    assert torch.equal(model.conv1.weight, before)
    assert oo.is_orthogonal(model.conv2.weight, view="kernels")


def test_tied_weights_are_found_by_either_name():
    model = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["embed"].weight
    for pattern in ("embed.weight", "head.weight", "*"):
        (group,) = oo.param_groups(model, {pattern: "matrix"}, rest={})
        assert names(group) == ["embed.weight"]
    with pytest.raises(ValueError, match=r"earlier patterns have taken, such as 'embed.weight'"):
        oo.param_groups(model, {"head.weight": "matrix", "embed.weight": "matrix"})


def test_what_compile_adds_to_names_is_ignored():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    model[0] = torch.compile(model[0])
    for compiled in (model, torch.compile(model)):
        for pattern in ("0.weight", "0.*"):
            constrained = oo.param_groups(compiled, {pattern: "matrix", "*": None}, rest=None)[0]
            assert constrained["params"][0] is model[0].weight
    # the name in the group is that in the model
    assert names(constrained)[0] in dict(compiled.named_parameters())


def test_a_factor_of_zeros_is_warned_of_by_name():
    model = nn.ModuleDict({"lora_B": nn.Linear(2, 8, bias=False), "other": nn.Linear(2, 8, bias=False)})
    nn.init.zeros_(model["lora_B"].weight)
    with pytest.warns(UserWarning, match=r"parameter 'lora_B.weight' has matrices without full rank") as caught:
        oo.orthogonalize_(model, {"*": "matrix"})
    assert len(caught) == 1


def test_nothing_is_warned_of_with_random_ones(recwarn):
    oo.orthogonalize_(nn.init.dirac_(torch.empty(6, 4, 3, 3)), view="kernels", init="random")
    assert not recwarn


@pytest.mark.parametrize("init", ["project", "random"])
def test_modules_without_values_are_refused_by_name(init):
    with torch.device("meta"):
        model = Net()
    with pytest.raises(ValueError, match=r"parameter 'attn.weight' is on the meta device and has no values"):
        oo.orthogonalize_(model, {"attn.weight": "matrix"}, init=init)


def test_warnings_point_at_the_line_of_the_user():
    model, zero = Net(), torch.zeros(3, 3)
    near = nn.Parameter(1.1 * torch.eye(3))
    calls = [
        lambda: oo.param_groups(model, {"attn.weight": "matrix"}),
        lambda: oo.project_(zero.zero_()),
        lambda: oo.orthogonalize_(zero.zero_()),
        lambda: oo.orthogonalize_(nn.ParameterDict({"w": torch.zeros(3, 3)}), {"w": "matrix"}),
        lambda: oo.POGO([near], lr=0.1),
        lambda: oo.SLPG([nn.Parameter(1.1 * torch.eye(3))], lr=0.1),
        lambda: oo.POGO([nn.Parameter(torch.eye(3))], lr=0.1).add_param_group(
            {"params": [nn.Parameter(1.1 * torch.eye(3))]}
        ),
        lambda: oo.POGO([nn.Parameter(torch.empty(3, 3, device="meta"))], lr=0.1),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="rank|left|leaves|not orthonormal|meta") as caught:
            call()
        assert [each.filename for each in caught] == [__file__]


def test_orthogonalize_takes_a_tensor_or_a_module():
    with pytest.raises(TypeError, match="takes a tensor or a module, but got list"):
        oo.orthogonalize_([torch.eye(3)])
    with pytest.raises(TypeError, match="parameters of a module, but got list"):
        oo.param_groups([torch.eye(3)], {"*": "matrix"})


@pytest.mark.parametrize("use", ["param_groups", "orthogonalize_"])
def test_a_pattern_that_matches_nothing_lists_near_names(use):
    call = {
        "param_groups": lambda patterns: oo.param_groups(Net(), patterns, lr=0.1),
        "orthogonalize_": lambda patterns: oo.orthogonalize_(Net(), patterns),
    }[use]
    with pytest.raises(ValueError, match=r"pattern 'atn.weight' matches no parameter; near names: attn.weight"):
        call({"atn.weight": "matrix"})
    with pytest.raises(ValueError, match="matches only parameters that earlier patterns have taken, such as 'conv1"):
        call({"conv*.weight": "kernels", "conv1.weight": "filters"})
    with pytest.raises(ValueError, match=r"Invalid view of pattern 'attn.weight': 'square'"):
        call({"attn.weight": "square"})


def test_orthogonalize_names_the_parameter_it_cannot_take_and_changes_nothing():
    model = Net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=r"parameter 'conv1.bias' has 1 dims"):
        oo.orthogonalize_(model, {"conv1.weight": "kernels", "conv1.*": "matrix"})
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])


def test_orthogonalize_project_is_the_nearest_and_random_is_reproducible():
    tensor = torch.randn(5, 5)
    u, _, vh = torch.linalg.svd(tensor)
    torch.testing.assert_close(oo.orthogonalize_(tensor.clone()), u @ vh, rtol=0, atol=1e-5)
    one, two = (
        oo.orthogonalize_(torch.empty(5, 5), init="random", generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert torch.equal(one, two)
    assert oo.is_orthogonal(one)


@pytest.mark.filterwarnings("ignore:the tensor has matrices without full rank")
def test_dirac_kernels_become_orthogonal_either_way():
    for init in ("project", "random"):
        weight = nn.init.dirac_(torch.empty(6, 4, 3, 3))
        oo.orthogonalize_(weight, view="kernels", init=init)
        assert oo.is_orthogonal(weight, view="kernels")


def test_patterns_that_are_no_dict_or_name_a_module():
    for call in (lambda p: oo.param_groups(Net(), p, lr=0.1), lambda p: oo.orthogonalize_(Net(), p)):
        with pytest.raises(TypeError, match="patterns must be a dict such as"):
            call("attn.*")
        with pytest.raises(ValueError, match=r"'attn' is a module, not a parameter: did you mean 'attn.\*'"):
            call({"attn": "matrix"})


def test_orthogonalize_refuses_what_is_not_finite_before_it_changes_anything():
    model = Net()
    before = model.conv1.weight.detach().clone()
    model.attn.weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"'attn.weight' is not finite"):
        oo.orthogonalize_(model, PATTERNS)
    assert torch.equal(model.conv1.weight, before)


def test_bad_calls():
    with pytest.raises(ValueError, match="Invalid init: 'haar'"):
        oo.orthogonalize_(torch.eye(3), init="haar")
    with pytest.raises(TypeError, match="needs patterns"):
        oo.orthogonalize_(Net())
    with pytest.raises(TypeError, match="takes view"):
        oo.orthogonalize_(torch.eye(3), {"*": "matrix"})
