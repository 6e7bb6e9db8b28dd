"""A checkpoint is loaded whole, or refused in one line while everything stays as it was."""

import copy

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import clones, every_method, point, set_gradients, steps

LATER = ("clipped", "rescued")  # counters that tell what happened, and are younger than some checkpoints


def parameters():
    return [point(4, 6), point(2, 5, 3, seed=1), torch.nn.Parameter(torch.linspace(-1, 1, 6).reshape(3, 2))]


def build(make, params, **options):
    """Constrained parameters with names, and an ordinary one."""
    names = ["first", "second", "rest"]
    named = list(zip(names, params, strict=True))
    return make([{"params": named[:2], **options}, {"params": named[2:], "algorithm": "adamw"}])


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
@pytest.mark.parametrize("kind", [int, float, torch.tensor, lambda step: torch.tensor([step], dtype=torch.int64)])
def test_step_may_be_a_number(make, kind):
    params = parameters()
    opt = build(make, params)
    steps(opt, params, 3)
    saved = copy.deepcopy(opt.state_dict())
    for state in saved["state"].values():
        state["step"] = kind(int(state["step"]))
    others = clones(params)
    other = build(make, others)
    other.load_state_dict(saved)
    steps(opt, params, 2, 3)
    steps(other, others, 2, 3)
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)
        assert other.state[two]["step"].dtype == torch.float32
        assert float(other.state[two]["step"]) == 5


@every_method
def test_counters_newer_than_the_checkpoint_start_at_zero(make):
    params = parameters()
    opt = build(make, params)
    steps(opt, params, 2)
    saved = copy.deepcopy(opt.state_dict())
    for key in (0, 1):
        for name in LATER:
            saved["state"][key].pop(name)
    opt.load_state_dict(saved)
    for param in params[:2]:
        for name in LATER:
            assert opt.state[param][name].dtype == torch.int32
            assert not opt.state[param][name].any()
    steps(opt, params, 1)


@every_method
def test_a_parameter_that_has_never_stepped_has_no_state(make):
    params = parameters()
    opt = build(make, params)
    set_gradients(params)
    params[1].grad = None
    opt.step()
    for empty in (False, True):
        saved = copy.deepcopy(opt.state_dict())
        if empty:
            saved["state"][1] = {}
        others = clones(params)
        other = build(make, others)
        other.load_state_dict(saved)
        assert not other.state.get(others[1])
        steps(other, others, 1)


@every_method
def test_a_group_can_be_built_again_from_what_was_loaded(make):
    """In a group with another base than the default one too: loading adds no keys."""
    params = parameters()
    for base in (None, oo.SGD(momentum=0.5), oo.VAdam(), oo.Muon(), oo.BB(), oo.CG(), oo.LBFGS(2)):
        options = {} if base is None else {"base": base}
        opt = build(make, params, **options)
        built = [set(group) for group in opt.param_groups]
        opt.load_state_dict(opt.state_dict())
        opt.load_state_dict(opt.state_dict())
        assert [set(group) for group in opt.param_groups] == built
        assert "differentiable" not in opt.defaults
        opt.add_param_group({"params": [("new", point(3, 3))]})
        assert "differentiable" not in opt.param_groups[-1]
        again = make([dict(group) for group in opt.param_groups])
        assert [set(group) for group in again.param_groups[:2]] == built


@every_method
def test_keys_that_older_versions_added_are_dropped(make):
    params = parameters()
    opt = build(make, params, base=oo.Muon())
    saved = copy.deepcopy(opt.state_dict())
    stray = {"betas": (0.9, 0.999), "eps": 1e-8, "differentiable": False, "foreach": True, "dampening": 0}
    own = {"layer": 3, "initial_lr": 0.1}
    saved["param_groups"][0].update(stray | own)
    keys = set(opt.param_groups[0])
    opt.load_state_dict(saved)
    assert set(opt.param_groups[0]) == keys | own.keys()


@every_method
def test_groups_of_older_checkpoints_lack_options(make):
    params = parameters()
    opt = build(make, params, base=oo.Muon(steps=3))
    steps(opt, params, 1)
    fresh = build(make, clones(params), base=oo.Muon())
    kept = ("params", "algorithm", "base")
    saved = copy.deepcopy(opt.state_dict())
    for group in saved["param_groups"]:
        for key in set(group) - {*kept, "lr", "r"}:
            del group[key]
    opt.load_state_dict(saved)
    for group, reference in zip(opt.param_groups, fresh.param_groups, strict=True):
        assert {k: v for k, v in group.items() if k != "params"} == {
            k: v for k, v in reference.items() if k != "params"
        }
    steps(opt, params, 1)


@every_method
def test_a_buffer_outlives_its_option(make):
    """Momentum that was switched off may be switched on again, and a run can be resumed in between."""
    params = [point(4, 6)]
    opt = make(params, base=oo.SGD(momentum=0.5))
    steps(opt, params, 2)
    key = "momentum" if "momentum" in opt.param_groups[0] else "base_momentum"
    opt.param_groups[0][key] = 0.0
    steps(opt, params, 1, 2)
    others = clones(params)
    other = make(others, base=oo.SGD(momentum=0.5))
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    for optimizer, mine in ((opt, params), (other, others)):
        optimizer.param_groups[0][key] = 0.5
        steps(optimizer, mine, 2, 3)
    assert torch.equal(params[0], others[0])
    assert torch.equal(opt.state[params[0]]["momentum_buffer"], other.state[others[0]]["momentum_buffer"])


@every_method
def test_a_run_goes_on_in_half_precision_and_back(make):
    params = [point(4, 6)]
    opt = make(params, base=oo.VAdam())
    steps(opt, params, 2)
    halves = [torch.nn.Parameter(p.detach().bfloat16()) for p in params]
    half = make(halves, base=oo.VAdam())
    half.load_state_dict(opt.state_dict())
    assert torch.equal(half.state[halves[0]]["master"], halves[0].float())
    steps(half, halves, 1)
    back = [torch.nn.Parameter(half.state[halves[0]]["master"].clone())]
    again = make(back, base=oo.VAdam())
    again.load_state_dict(half.state_dict())
    assert "master" not in again.state[back[0]]
    steps(again, back, 1)
    assert oo.distance(back[0]) < 1e-2


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


@every_method
@pytest.mark.parametrize(
    ("algorithm", "names"),
    [
        ("adamw", ("foreach", "maximize", "fused", "capturable", "amsgrad")),
        ("sgd", ("foreach", "maximize", "fused", "nesterov", "dampening")),
    ],
)
def test_ordinary_groups_of_older_checkpoints(make, algorithm, names):
    def optimizer(values):
        rest = {"params": values[1:], "algorithm": algorithm, **({"momentum": 0.9} if algorithm == "sgd" else {})}
        return make([{"params": values[:1]}, rest])

    params = [point(4, 6), torch.nn.Parameter(torch.linspace(-1, 1, 6))]
    opt = optimizer(params)
    steps(opt, params, 2)
    saved = copy.deepcopy(opt.state_dict())
    for name in names:
        del saved["param_groups"][1][name]
    others = clones(params)
    other = optimizer(others)
    other.load_state_dict(saved)
    assert set(other.param_groups[1]) == set(opt.param_groups[1])
    steps(opt, params, 2, 2)
    steps(other, others, 2, 2)
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)


def test_torch_saved_no_momentum_buffer_as_none():
    params = [point(4, 6), torch.nn.Parameter(torch.ones(3))]
    opt = oo.POGO([{"params": params[:1]}, {"params": params[1:], "algorithm": "sgd", "momentum": 0.9}], 0.1)
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][1] = {"momentum_buffer": None}
    opt.load_state_dict(saved)
    steps(opt, params, 1)
    assert torch.equal(opt.state[params[1]]["momentum_buffer"], params[1].grad)


def test_state_of_no_parameter_is_kept_as_torch_does():
    params = [point(4, 6)]
    opt = oo.POGO(params, 0.1)
    saved = opt.state_dict()
    saved["state"]["note"] = 1
    opt.load_state_dict(saved)
    assert opt.state["note"] == 1
    steps(opt, params, 1)
