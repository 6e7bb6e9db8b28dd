"""Checkpoints of older versions, of torch and of other precisions: they load, and the run goes on."""

import copy

import pytest
import torch

import orthoptim as oo
from tests.conformance.checkpoints import LATER, build, parameters
from tests.conformance.methods import clones, every_method, point, set_gradients, steps


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
