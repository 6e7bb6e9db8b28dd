"""Parameters that somebody replaces after `wrap`: followed before the first step, an error after it."""

import copy
import timeit

import pytest
import torch
from torch import nn

import orthoptim as oo
from tests.conformance.methods import clones, point, set_gradients, steps


def swapped(groups, mapping):
    """Put other tensors into param groups, as accelerate does."""
    for group in groups:
        group["params"] = [mapping.get(param, param) for param in group["params"]]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_parameters_that_are_replaced_before_the_first_step_are_followed(named, dtype):
    olds = [point(4, 6), point(3, 5, 5, seed=1), nn.Parameter(torch.randn(3))]
    constrained = [("a", olds[0]), ("b", olds[1])] if named else olds[:2]
    opt = oo.wrap(torch.optim.SGD([{"params": olds[1:]}, {"params": olds[0]}], lr=0.1, momentum=0.9), constrained)
    alike = [nn.Parameter(param.detach().to(dtype, copy=True)) for param in olds]
    reference = oo.wrap(torch.optim.SGD([alike[1], alike[2], alike[0]], lr=0.1, momentum=0.9), alike[:2])
    news = clones(alike)
    before = clones(olds)
    swapped(opt.param_groups, dict(zip(olds, news, strict=True)))
    for t in range(3):
        set_gradients(news, t)
        set_gradients(alike, t)
        opt.step()
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(news, alike, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(olds, before, strict=True))
    assert opt.drift()[0][:4] == reference.drift()[0][:4]
    assert opt.drift()[0].name == ("a +1 more" if named else "params[0] +1 more")


@pytest.mark.parametrize("look", ["drift", "plan"])
def test_telemetry_is_of_the_parameters_that_are_there(look):
    old, new = point(4, 6), nn.Parameter(torch.eye(4, 6, dtype=torch.float64))
    opt = oo.wrap(torch.optim.SGD([old], lr=0.1), [old])
    swapped(opt.param_groups, {old: new})
    getattr(opt, look)()
    assert opt.plan()[0].dtype == torch.float64
    assert opt.drift()[0].max_distance == 0


def test_state_after_a_swap():
    old, new = point(4, 6), point(4, 6, seed=1)
    opt = oo.wrap(torch.optim.Adam([old], lr=0.1), [old], landing="strict")
    swapped(opt.param_groups, {old: new})
    opt.load_state_dict(opt.state_dict())
    twin = copy.deepcopy(opt)
    (other,) = twin.param_groups[0]["params"]
    steps(opt, [new], 3)
    steps(twin, [other], 3)
    assert torch.equal(new, other)
    assert oo.distance(new) < 1e-5


def never_silent(opt, message):
    for act in (opt.step, opt.drift, opt.plan, opt.state_dict, lambda: opt.load_state_dict({})):
        with pytest.raises(RuntimeError, match=message):
            act()


def test_a_parameter_that_is_replaced_after_a_step_is_an_error():
    old, other = point(4, 6), point(4, 4, seed=2)
    opt = oo.wrap(torch.optim.Adam([old, other], lr=0.1), [("other", other), ("attn.weight", old)])
    steps(opt, [old, other], 1)
    new = clones([old])[0]
    before = clones([old, other])
    swapped(opt.param_groups, {old: new})
    set_gradients([new, other])
    never_silent(opt, r"parameter 'attn.weight' \(4×6\) was replaced in the param groups of Adam after it was stepped")
    assert all(torch.equal(a, b) for a, b in zip([new, other], before, strict=True))


def test_a_parameter_that_is_replaced_by_another_shape_is_an_error():
    old = point(4, 6)
    opt = oo.wrap(torch.optim.Adam([old]), [old])
    swapped(opt.param_groups, {old: point(6, 6)})
    never_silent(opt, r"parameter 0 of constrained group 0 \(4×6\) was replaced .* by a tensor of shape \(6, 6\)")


def test_a_parameter_that_is_replaced_by_one_that_is_far_away_is_an_error():
    olds = [point(4, 6), point(4, 6, seed=1)]
    opt = oo.wrap(torch.optim.Adam(olds), [{"params": [("near", olds[0])]}, {"params": [("far", olds[1])]}])
    with torch.no_grad():
        news = [nn.Parameter(1.0001 * olds[0]), nn.Parameter(3 * olds[1])]
    before = clones(news)
    swapped(opt.param_groups, dict(zip(olds, news, strict=True)))
    never_silent(opt, r"was replaced in the param groups of Adam: parameter 'far' \(4×6\) is not orthonormal")
    assert all(torch.equal(a, b) for a, b in zip(news, before, strict=True))


@pytest.mark.parametrize("remove", [lambda groups: groups.pop(0), lambda groups: groups[0]["params"].pop(0)])
def test_a_parameter_that_is_taken_away_is_an_error(remove):
    param, alike = point(4, 6), point(4, 6, seed=1)
    opt = oo.wrap(torch.optim.Adam([{"params": [param]}, {"params": [alike]}]), [("weight", param)])
    remove(opt.param_groups)
    never_silent(opt, r"parameter 'weight' \(4×6\) is no longer in the param groups of Adam")


def test_parameters_may_change_places():
    params = [point(4, 6), point(4, 6, seed=1)]
    opt = oo.wrap(torch.optim.SGD([{"params": [param]} for param in params], lr=0.1), params[:1], landing="strict")
    steps(opt, params, 1)
    opt.param_groups.reverse()
    opt.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    steps(opt, params, 20)
    assert oo.distance(params[0]) < 1e-5
    assert oo.distance(params[1]) > 1


def test_looking_for_replaced_parameters_takes_microseconds():
    params = [nn.Parameter(torch.eye(2)) for _ in range(1000)]
    opt = oo.wrap(torch.optim.SGD(params, lr=0.1), params)
    assert min(timeit.repeat(opt._follow, number=10, repeat=5)) / 10 < 1e-3
