"""Exceptions in the middle of a step: of hooks, closures, and between blocks."""

import copy

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import clones, every_method, point, set_gradients, steps


class Stop(Exception):
    """What the tests raise."""


def stop(*_):
    raise Stop


@pytest.fixture
def params():
    return [point(4, 6), point(6, 6, seed=1), point(5, 3, 3, seed=2)]


def snapshot(opt, params):
    return copy.deepcopy([p.detach() for p in params]), copy.deepcopy(opt.state_dict()["state"])


def assert_as_before(before, opt, params):
    tensors, states = before
    for one, two in zip(params, tensors, strict=True):
        assert torch.equal(one, two)
    now = opt.state_dict()["state"]
    assert now.keys() == states.keys()
    for index, state in states.items():
        assert now[index].keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(now[index][name], value), name


@every_method
def test_a_pre_hook_or_closure_that_raises_changes_nothing(make, params):
    opt = make(params)
    steps(opt, params, 2)
    set_gradients(params, 2)
    before = snapshot(opt, params)
    hook = opt.register_step_pre_hook(stop)
    with pytest.raises(Stop):
        opt.step()
    hook.remove()
    assert_as_before(before, opt, params)
    with pytest.raises(Stop):
        opt.step(stop)
    assert_as_before(before, opt, params)


@every_method
def test_a_post_hook_that_raises_comes_after_a_whole_step(make, params):
    others = clones(params)
    opt, other = make(params), make(others)
    for t in range(3):
        set_gradients(params, t)
        set_gradients(others, t)
        hook = opt.register_step_post_hook(stop)
        with pytest.raises(Stop):
            opt.step()
        hook.remove()
        other.step()
    assert_as_before(snapshot(other, others), opt, params)


@every_method
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_gradient_hook_that_raises_in_a_closure(make, params, register):
    """Parameters whose gradients came before it have new ones, and nothing has stepped."""
    opt = make(params)
    steps(opt, params, 1)
    before = snapshot(opt, params)
    hook = getattr(params[1], register)(stop)

    def closure():
        opt.zero_grad()
        loss = sum((p**3).sum() for p in params)
        loss.backward()
        return loss

    with pytest.raises(Stop):
        opt.step(closure)
    assert_as_before(before, opt, params)
    hook.remove()
    opt.step(closure)
    assert opt.drift()[0].skipped == 0
    assert all((opt.state[p]["step"] == 2).all() for p in params)


@every_method
def test_a_post_accumulate_hook_may_step(make, params):
    """An optimizer for each parameter, stepped inside backward: the gradients need never be in memory together."""
    others = clones(params)
    optimizers = {param: make([param]) for param in params}
    together = make(others)

    def step(param):
        optimizers[param].step()
        param.grad = None

    for param in params:
        param.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        sum((p**3).sum() for p in params).backward()
        together.zero_grad()
        sum((p**3).sum() for p in others).backward()
        together.step()
    for one, two in zip(params, others, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=2e-6)


@every_method
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_exception_between_blocks_leaves_matrices_stepped_or_not_and_the_counts_right(make, at, monkeypatch):
    """Each matrix is whole, with its state, and `skipped` is not negative, then and after further steps."""
    params = [point(4, 6), point(6, 6, seed=1), point(5, 3, 3, seed=2)]
    others = clones(params)
    opt, other = make(params), make(others)
    steps(opt, params, 2)
    steps(other, others, 2)
    before = snapshot(opt, params)
    set_gradients(params, 2)
    set_gradients(others, 2)
    other.step()
    after = snapshot(other, others)
    update, calls = type(opt).update_whole, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) > at:
            raise Stop
        return update(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(opt), "update_whole", staticmethod(interrupted))
        with pytest.raises(Stop):
            opt.step()
    held = snapshot(opt, params)
    for i in range(len(params)):
        stepped = torch.equal(held[0][i], after[0][i])
        assert stepped or torch.equal(held[0][i], before[0][i])
        expected = (after if stepped else before)[1][i]
        assert all(torch.equal(held[1][i][name], expected[name]) for name in expected if name != "step")
    assert opt.drift()[0].skipped >= 0
    steps(opt, params, 2, 3)
    assert opt.drift()[0].skipped >= 0


def test_an_exception_in_a_large_parameter_of_several_blocks(monkeypatch):
    """Matrices of one parameter: some have stepped, others not; the next step takes them all on."""
    param = point(2000, 8, 64)
    opt = oo.POGO([param], 0.1)
    assert opt.plan()[0].blocks > 1
    steps(opt, [param], 1)
    set_gradients([param], 1)
    update, calls = oo.POGO.update_whole, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise Stop
        return update(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(oo.POGO, "update_whole", staticmethod(interrupted))
        with pytest.raises(Stop):
            opt.step()
    skipped = opt.drift()[0].skipped
    assert 0 < skipped < len(param)
    opt.step()
    assert opt.drift()[0].skipped == skipped
    assert oo.distance(param).max() < 1e-3
