"""Patterns, param groups and initial values."""

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
        landing="strict",
    )
    assert [[name for name, _ in group["params"]] for group in groups] == [["conv1.weight"], ["conv2.weight"]]
    assert [group["lr"] for group in groups] == [0.1, 0.5]
    assert [group["view"] for group in groups] == ["filters", "kernels"]
    assert all(group["landing"] == "strict" for group in groups)


def test_rest_leaves_frozen_parameters_out():
    model = Net()
    model.head.requires_grad_(False)
    groups = oo.param_groups(model, {"attn.weight": "matrix"}, lr=0.1, rest={"algorithm": "sgd"})
    assert not [name for name, _ in groups[-1]["params"] if name.startswith("head")]
    assert len(oo.param_groups(model, {"attn.weight": "matrix"}, lr=0.1)) == 1


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
