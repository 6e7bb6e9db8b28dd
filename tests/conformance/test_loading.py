"""A checkpoint is loaded whole, or refused in one line while everything stays as it was."""

import copy

import pytest
import torch

import orthoptim as oo
from tests.conformance.checkpoints import LATER, build, parameters
from tests.conformance.methods import clones, every_method, point, steps


def snapshot(opt):
    values = [p.detach().clone() for group in opt.param_groups for p in group["params"]]
    groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"} for group in opt.param_groups
    ]
    state = {key: dict(value) for key, value in opt.state.items()}
    clone = {key: {name: entry.clone() for name, entry in value.items()} for key, value in state.items()}
    return values, groups, state, clone, list(opt.param_groups), copy.deepcopy(opt.defaults)


def unchanged(opt, before):
    values, groups, state, clone, objects, defaults = before
    now = [p for group in opt.param_groups for p in group["params"]]
    assert all(torch.equal(a, b) for a, b in zip(values, now, strict=True))
    assert all(a is b for a, b in zip(objects, opt.param_groups, strict=True))
    assert [{key: value for key, value in group.items() if key != "params"} for group in opt.param_groups] == groups
    assert opt.state.keys() == state.keys()
    for key, entries in state.items():
        assert opt.state[key].keys() == entries.keys()
        for name, value in entries.items():
            assert opt.state[key][name] is value
            assert torch.equal(value, clone[key][name])
    assert opt.defaults == defaults


def refused(opt, saved, *words):
    before = snapshot(opt)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (what it says is checked below)
        opt.load_state_dict(saved)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in ("loaded state dict", *words)), message
    unchanged(opt, before)


def trained(make):
    params = parameters()
    opt = build(make, params)
    steps(opt, params, 2)
    others = parameters()
    other = build(make, others)
    steps(other, others, 1)
    return opt, other


def spoilt(value):
    """Ways to spoil an entry."""
    yield "a string", "not a tensor but str"
    yield [value], "not a tensor but list"
    yield value.new_zeros(7, 7), "of shape (7, 7)"
    if value.ndim:
        yield value.sum(), "of shape ()"
        yield value.to_sparse(), "of layout torch.sparse_coo"
    if value.is_floating_point():
        yield torch.full_like(value, torch.nan), "not finite"
        yield torch.full_like(value, torch.inf), "not finite"
        yield value.to(torch.complex64), "of dtype torch.complex64"
    else:
        yield value.float(), "of dtype torch.float32"
    yield value.to("meta"), "has no data"


@every_method
def test_every_entry_is_checked_before_anything_changes(make):
    source, opt = trained(make)
    saved = source.state_dict()
    for key, label in ((1, "parameter 'second' (2×5×3)"), (2, "parameter 'rest' (3×2)")):
        for name, value in saved["state"][key].items():
            for bad, words in spoilt(value):
                wrong = copy.deepcopy(saved)
                wrong["state"][key][name] = bad
                refused(opt, wrong, repr(name), words, label)
            wrong = copy.deepcopy(saved)
            del wrong["state"][key][name]
            if name not in LATER:
                refused(opt, wrong, f"no {name!r}", label)


@every_method
def test_counts_are_not_negative_and_steps_are_numbers(make):
    source, opt = trained(make)
    for name, value, words in [
        ("step", -1, "of value -1"),
        ("step", float("nan"), "of value nan"),
        ("step", True, "not a tensor but bool"),
        ("step", torch.tensor(-1.0), "negative"),
        ("step", torch.tensor(1j), "of dtype torch.complex64"),
        ("num_updates", torch.tensor([-1, 1], dtype=torch.int32), "negative"),
    ]:
        wrong = copy.deepcopy(source.state_dict())
        wrong["state"][1][name] = value
        refused(opt, wrong, repr(name), words, "parameter 'second' (2×5×3)")


@every_method
def test_unknown_entries_and_parameters_are_refused(make):
    source, opt = trained(make)
    wrong = copy.deepcopy(source.state_dict())
    wrong["state"][0]["average"] = torch.zeros(4, 6)
    refused(opt, wrong, "unknown entry 'average'", "parameter 'first' (4×6)")
    wrong = copy.deepcopy(source.state_dict())
    wrong["state"][3] = wrong["state"][2]
    refused(opt, wrong, "a state for parameter 3", "more parameters")
    wrong = copy.deepcopy(source.state_dict())
    wrong["state"][1] = [1, 2]
    refused(opt, wrong, "list for the state of parameter 'second' (2×5×3)")


@every_method
def test_what_is_no_state_dict_is_refused(make):
    source, opt = trained(make)
    saved = source.state_dict()
    refused(opt, {}, "has no 'param_groups'")
    refused(opt, [], "has no 'param_groups'")
    refused(opt, {"param_groups": saved["param_groups"]}, "has no 'state'")
    refused(opt, {**saved, "state": []}, "has no 'state'")
    refused(opt, {**saved, "param_groups": saved["param_groups"][:1]}, "different number of parameter groups")
    for index, change, words in [
        (1, "text", "no 'params' in group 1"),
        (1, {}, "no 'params' in group 1"),
        (0, {"params": [0]}, "doesn't match the size of optimizer's group"),
        (0, {"params": [0, 0]}, "one state, 0, for parameter 'first' (4×6) and parameter 'second'"),
        (0, {"params": [0, [1]]}, "no 'params' in group 0"),
        (0, {"param_names": ["first"]}, "'param_names' in group 0"),
        (0, {"algorithm": None}, "algorithm None in group 0"),
    ]:
        wrong = copy.deepcopy(saved)
        group = wrong["param_groups"][index]
        wrong["param_groups"][index] = {**group, **change} if change and isinstance(change, dict) else change
        refused(opt, wrong, words)


OPTIONS = {
    "lr": [-1.0, float("nan"), "0.1", None],
    "weight_decay": [-0.1],
    "landing": ["x", None, 3],
    "landing_steps": [0, "x"],
    "metric": ["x"],
    "retraction": ["x"],
    "sampling": ["x"],
    "r": [0, None, 100, "x"],
    "lam": [-1.0],
    "betas": [(2.0, 0.9), (0.9,), (0.9, 0.9, 0.9), "x", None],
    "eps": [-1.0, float("nan")],
    "maximize": ["no", torch.ones(2)],
    "foreach": ["no", torch.ones(2)],
    "amsgrad": [None, torch.ones(2)],
    "capturable": ["no"],
    "momentum": [-1.0, "x"],
    "view": ["filters", 3],
    "side": ["columns", None],
    "base": ["other", None],
}


def builds(make, index, options):
    params = parameters()
    groups = [{"params": params[:2]}, {"params": params[2:], "algorithm": "adamw"}]
    groups[index].update(options)
    try:
        make(groups)
    except (ValueError, TypeError):
        return False
    return True


@every_method
def test_option_values_are_checked_like_at_construction(make):
    source, opt = trained(make)
    saved = source.state_dict()
    refusals = 0
    for index, group in enumerate(saved["param_groups"]):
        for name in sorted(group.keys() & OPTIONS.keys()):
            for bad in OPTIONS[name]:
                constant = name in ("view", "side", "base")  # not to be changed by a checkpoint
                if constant or (name, bad) == ("lr", None) or not builds(make, index, {name: bad}):
                    wrong = copy.deepcopy(saved)
                    wrong["param_groups"][index][name] = bad
                    refused(opt, wrong, f"in group {index}")
                    refusals += 1
    assert refusals > 15


@every_method
def test_a_refused_state_does_not_take_a_repair_back(make):
    near = torch.nn.Parameter(point(4, 6).detach() * (1 + 1e-4))
    opt = make([near])
    source = make([point(4, 6)])
    steps(source, source.param_groups[0]["params"], 1)
    saved = copy.deepcopy(source.state_dict())
    saved["state"][0]["step"] = "three"
    refused(opt, saved, "'step'")
    saved["state"][0]["step"] = 1
    opt.load_state_dict(saved)
    assert not oo.is_orthogonal(near)


@every_method
def test_what_is_loaded_is_not_changed(make):
    params = parameters()
    opt = build(make, params)
    steps(opt, params, 2)
    saved = opt.state_dict()
    kept = copy.deepcopy(saved)
    others = clones(params)
    other = build(make, others)
    other.load_state_dict(saved)
    steps(other, others, 2)
    other.param_groups[0]["lr"] = 0.0
    assert saved["param_groups"] == kept["param_groups"]
    for key, state in kept["state"].items():
        assert all(torch.equal(value, saved["state"][key][name]) for name, value in state.items())


@every_method
def test_check_state_dict_says_the_same_and_changes_nothing(make):
    source, opt = trained(make)
    before = snapshot(opt)
    opt.check_state_dict(source.state_dict())
    wrong = copy.deepcopy(source.state_dict())
    del wrong["state"][0]["num_updates"]
    with pytest.raises(ValueError, match=r"no 'num_updates' for parameter 'first'"):
        opt.check_state_dict(wrong)
    unchanged(opt, before)


@every_method
@pytest.mark.parametrize("name", ["amsgrad", "differentiable", "foreach", "fused"])
def test_options_without_effect_are_refused_unless_they_are_off(make, name):
    with pytest.raises(ValueError, match=f"group 0: '{name}' has no effect on orthogonal parameters"):
        make([{"params": [point(4, 6)], name: True}])
    for off in (False, None):
        opt = make([{"params": [point(4, 6)], name: off}])
        assert name not in opt.param_groups[0]
