"""Hooks of a wrapped optimizer: each fires once, around the whole step."""

import functools

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import orthoptim as oo
from tests.conformance.methods import point, set_gradients, steps
from tests.optim.wrapping import OPTIMIZERS, build


def test_hooks_fire_once():
    param = point(4, 6)
    opt = oo.wrap(torch.optim.Adam([param]), [param])
    fired = []
    opt.register_step_pre_hook(lambda *_: fired.append("pre"))
    opt.register_step_post_hook(lambda *_: fired.append("post"))
    opt.register_state_dict_pre_hook(lambda _: fired.append("save"))
    opt.register_state_dict_post_hook(lambda _, state_dict: fired.append("saved"))
    opt.register_load_state_dict_pre_hook(lambda _, state_dict: fired.append("load"))
    opt.register_load_state_dict_post_hook(lambda _: fired.append("loaded"))
    set_gradients([param])
    opt.step()
    opt.load_state_dict(opt.state_dict())
    assert fired == ["pre", "post", "save", "saved", "load", "loaded"]


@pytest.fixture
def fired():
    """Calls of the hooks of all optimizers."""
    calls = []
    handles = [
        register_optimizer_step_pre_hook(lambda opt, *_: calls.append(("pre", type(opt).__name__))),
        register_optimizer_step_post_hook(lambda opt, *_: calls.append(("post", type(opt).__name__))),
    ]
    yield calls
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hooks_of_all_optimizers_fire_once(fired, name, scheduled):
    param = point(4, 6)
    inner = build(name, [param])
    schedule = lr_scheduler.ConstantLR(inner) if scheduled else None  # which replaces the step of the inner optimizer
    opt = oo.wrap(inner, [param])
    inner.register_step_pre_hook(lambda *_: fired.append("inner pre"))
    inner.register_step_post_hook(lambda *_: fired.append("inner post"))
    opt.register_step_pre_hook(lambda *_: fired.append("own pre"))
    opt.register_step_post_hook(lambda *_: fired.append("own post"))
    set_gradients([param])
    opt.step(lambda: param.sum())
    assert fired == [("pre", "Wrapped"), "own pre", "inner pre", "inner post", "own post", ("post", "Wrapped")]
    if scheduled:
        schedule.step()  # does not complain of a step that it has not seen


def test_hooks_of_all_optimizers_see_the_parameters_before_and_after_the_whole_step():
    param = point(4, 6)
    opt = oo.wrap(torch.optim.SGD([param], lr=0.1), [param])
    seen = []
    handles = [
        register(lambda *_: seen.append(param.detach().clone()))
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
    ]
    before = param.detach().clone()
    steps(opt, [param], 1)
    for handle in handles:
        handle.remove()
    assert torch.equal(seen[0], before)
    assert torch.equal(seen[1], param)


def test_a_hook_of_the_inner_optimizer_may_change_the_arguments():
    param = point(4, 6)
    inner = torch.optim.SGD([param], lr=0.1)
    opt = oo.wrap(inner, [param])
    inner.register_step_pre_hook(lambda opt, args, kwargs: ((opt,), {"closure": lambda: 7.0}))
    set_gradients([param])
    assert opt.step() == 7.0
    inner.register_step_pre_hook(lambda *_: 3)
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        opt.step()


def test_a_step_that_someone_replaced_is_called():
    param = point(4, 6)
    inner = torch.optim.SGD([param], lr=0.1)
    opt = oo.wrap(inner, [param])
    step, called = inner.step, []
    inner.step = lambda *args: called.append(step(*args))
    set_gradients([param])
    opt.step()
    assert len(called) == 1

    class Decorated(torch.optim.SGD):
        @functools.wraps(torch.optim.SGD.step)
        def step(self, *args):
            called.append(torch.optim.SGD.step(self, *args))

    other = point(4, 6)
    steps(oo.wrap(Decorated([other], lr=0.1), [other]), [other], 1)
    assert len(called) == 2
