"""A model that is cast between steps: its parameters are the same objects, their dtype is another."""

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import every_method, point, set_gradients, steps


def cast_(params, dtype):
    """What ``model.to(dtype)`` does."""
    for param in params:
        param.data = param.data.to(dtype)
        param.grad = None


def keeps_entries(opt):
    return any(value.shape == p.shape for p in opt.param_groups[0]["params"] for value in opt.state[p].values())


@every_method
def test_a_state_of_another_precision_is_refused_by_name_and_may_be_cast(make):
    named = [("v", point(4, 6)), ("w", point(4, 6, seed=1))]
    params = [param for _, param in named]
    opt = make(named)
    steps(opt, params, 2)
    kept = keeps_entries(opt)
    cast_(params[1:], torch.float64)
    before = [param.detach().clone() for param in params]
    set_gradients(params)
    if kept:
        with pytest.raises(
            RuntimeError, match=r"'w' \(4×6\) is now torch.float64, but its state is torch.float32: cast"
        ):
            opt.step()
        assert all(torch.equal(param, old) for param, old in zip(params, before, strict=True))
        opt.load_state_dict(opt.state_dict())
    opt.step()
    assert not any(torch.equal(param, old) for param, old in zip(params, before, strict=True))
    assert opt.drift()[0].max_distance < 0.1


@every_method
def test_half_precision_and_back_needs_nothing(make):
    param = point(4, 6)
    opt = make([param])
    steps(opt, [param], 2)
    for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):
        cast_([param], dtype)
        before = param.detach().clone()
        steps(opt, [param], 2)
        # bfloat16 does not show the first steps of a small length
        assert not torch.equal(opt.state[param]["master"] if dtype == torch.bfloat16 else param, before)
        assert opt.drift()[0].max_distance < 0.2
        assert opt.drift()[0].skipped == 0


@pytest.mark.parametrize("rest", [{"algorithm": "adamw"}, {"algorithm": "sgd", "momentum": 0.9}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_ordinary_parameters_are_refused_before_anything_is_stepped(rest, dtype):
    constrained, other = point(4, 6), torch.nn.Parameter(torch.randn(5))
    opt = oo.POGO([{"params": [("w", constrained)]}, {"params": [("bias", other)], **rest}], 0.1)
    steps(opt, [constrained, other], 2)
    cast_([other], dtype)
    before = constrained.detach().clone()
    set_gradients([constrained, other])
    with pytest.raises(RuntimeError, match=rf"parameter 'bias' \(5\) is now {dtype}, but its state is torch.float32"):
        opt.step()
    assert torch.equal(constrained, before)
    opt.load_state_dict(opt.state_dict())
    opt.step()
    assert not torch.equal(constrained, before)
