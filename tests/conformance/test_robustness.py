"""What real use does to an optimizer."""

import copy

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import clones, every_method, point, set_gradients, steps


@every_method
def test_a_step_under_autocast_is_not_rounded(make):
    params, others = [point(16, 32)], [point(16, 32)]
    opt, other = make(params), make(others)
    for t in range(5):
        set_gradients(params, t)
        set_gradients(others, t)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            opt.step()
        other.step()
    assert torch.equal(params[0], others[0])


def test_functions_under_autocast_are_not_rounded():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = oo.orthogonalize_(torch.randn(32, 32))
        y = oo.orthogonalize_(torch.empty(32, 32), init="random")
        assert oo.distance(x).dtype == torch.float32
    assert oo.distance(x) < 1e-5
    assert oo.distance(y) < 1e-5


@every_method
def test_changing_the_layout_of_a_large_parameter_loses_no_state(make):
    """Parts of a parameter are written through views; a state of other strides must not be written to a copy."""
    param = point(300, 60, 3, 3, view="kernels")
    plain = torch.nn.Parameter(param.detach().clone())
    param.data = param.data.to(memory_format=torch.channels_last)
    opt, other = make([param], view="kernels"), make([plain], view="kernels")
    for t in range(3):
        if t == 1:
            param.data = param.data.contiguous()
        set_gradients([plain], t)
        param.grad = plain.grad.clone()
        opt.step()
        other.step()
    torch.testing.assert_close(param, plain, rtol=0, atol=1e-6)
    assert (opt.state[param]["num_updates"] == 3).all()


@every_method
def test_a_state_of_another_layout_is_loaded_in_the_parameters_own(make):
    first = point(4, 6, 3, 3, view="filters", dtype=torch.float64)
    last = torch.nn.Parameter(first.detach().clone(memory_format=torch.channels_last))
    opt, other = (make([p], view="filters", base=oo.SGD(momentum=0.5)) for p in (first, last))
    set_gradients([first])
    last.grad = first.grad.clone()
    opt.step()
    other.step()
    other.load_state_dict(opt.state_dict())
    buffer = other.state[last]["momentum_buffer"]
    assert buffer.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(buffer, opt.state[first]["momentum_buffer"])


@every_method
def test_a_buffer_that_is_missing_is_made_and_no_other_takes_its_place(make):
    """As when momentum is switched on in the middle of a run."""
    params = [point(4, 6)]
    opt = make(params, base=oo.SGD(momentum=0.5))
    steps(opt, params, 2)
    state = opt.state[params[0]]
    state["average"] = state.pop("momentum_buffer")
    steps(opt, params, 1)
    assert state["momentum_buffer"] is not params[0]
    assert oo.distance(params[0]) < 0.5


@every_method
@pytest.mark.parametrize(("option", "value"), [("view", "filters"), ("side", "rows"), ("base", "adam")])
def test_a_state_saved_with_another_view_side_or_base_is_refused(make, option, value):
    params = [point(4, 6)]
    opt = make(params)
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"][0][option] = value
    with pytest.raises(ValueError, match=f"loaded state dict has {option} '{value}' in group 0"):
        opt.load_state_dict(saved)


@every_method
def test_options_newer_than_the_checkpoint_take_their_defaults(make):
    params = [point(4, 6)]
    opt = make(params)
    saved = copy.deepcopy(opt.state_dict())
    del saved["param_groups"][0]["maximize"]
    opt.load_state_dict(saved)
    steps(opt, params, 1)
    assert opt.param_groups[0]["maximize"] is False


@every_method
def test_a_float32_state_goes_on_in_float64(make):
    params = [point(4, 6)]
    opt = make(params, base=oo.VAdam())
    steps(opt, params, 2)
    doubles = [torch.nn.Parameter(p.detach().double()) for p in params]
    other = make(doubles, base=oo.VAdam())
    other.load_state_dict(opt.state_dict())
    steps(opt, params, 2, 2)
    steps(other, doubles, 2, 2)
    assert other.state[doubles[0]]["exp_avg"].dtype == torch.float64
    torch.testing.assert_close(params[0].double(), doubles[0], rtol=0, atol=1e-5)


@every_method
def test_an_empty_state_does_not_take_a_repair_back(make):
    param = torch.nn.Parameter(point(4, 6).detach() * 1.01)
    with pytest.warns(UserWarning, match="was not orthonormal"):
        opt = make([param])
    opt.load_state_dict(opt.state_dict())
    assert oo.distance(param) < 1e-6


@every_method
def test_a_refused_group_leaves_the_groups_before_it_as_they_were(make):
    near = torch.nn.Parameter(point(4, 6).detach() * 1.0001)
    before = near.detach().clone()
    with pytest.raises(ValueError, match="not orthonormal"):
        make([{"params": [near]}, {"params": [torch.nn.Parameter(torch.randn(4, 6))]}])
    assert torch.equal(near, before)


@every_method
def test_an_empty_group(make):
    param = point(4, 6)
    opt = make([{"params": [param]}, {"params": []}])
    steps(opt, [param], 1)
    assert opt.drift()[1].matrices == 0


@every_method
def test_groups_can_serve_another_optimizer(make):
    groups = [{"params": [point(4, 6)]}]
    make(groups)
    make(groups)
    assert groups[0].keys() == {"params"}


@every_method
def test_misspelt_options_and_those_of_others_are_refused(make):
    with pytest.raises(ValueError, match="group 0: unknown option 'veiw'; did you mean 'view'"):
        make([{"params": [point(4, 6)], "veiw": "filters"}])
    with pytest.raises(ValueError, match="group 0: 'steps' is not an option of this optimizer with this base"):
        make([{"params": [point(4, 6)], "base": oo.SGD(), "steps": 3}])
    make([{"params": [point(4, 6)], "layer": 3}])  # a key of the user's own


@every_method
def test_lr_that_is_no_number(make):
    with pytest.raises(TypeError, match=r"lr must be a number or a tensor, but got '0.1'"):
        make([point(4, 6)], lr="0.1")


def test_a_result_that_is_not_finite_is_not_written():
    params = [point(3, 6, 8)]
    opt = oo.SLPG(params, 1e30)
    before = params[0].detach().clone()
    set_gradients(params)
    params[0].grad[1] = 0
    opt.step()
    assert torch.equal(params[0][[0, 2]], before[[0, 2]])
    assert torch.isfinite(params[0]).all()
    assert opt.drift()[0].skipped == 2


def test_barzilai_borwein_needs_no_lr_in_a_group_either():
    opt = oo.POGO([{"params": [point(4, 6)], "base": oo.BB()}])
    assert opt.param_groups[0]["lr"] == 1.0
    assert oo.POGO([{"params": [point(4, 6)], "base": oo.BB(), "lr": None}]).param_groups[0]["lr"] == 1.0
    model = torch.nn.Linear(3, 3)
    oo.orthogonalize_(model, {"weight": "matrix"})
    assert oo.POGO(oo.param_groups(model, {"weight": "matrix"}, base=oo.BB(), rest=None)).param_groups[0]["lr"] == 1.0


def test_a_lazily_negated_parameter_is_refused():
    lazy = torch.nn.Parameter(torch.eye(3, dtype=torch.complex64).mul(1j).conj().imag)
    assert lazy.is_neg()
    with pytest.raises(ValueError, match="lazily negated"):
        oo.POGO([lazy], 0.1)


def test_an_exception_in_a_wrapped_step_leaves_the_parameters_on_the_manifold():
    param = point(6, 6)
    opt = oo.wrap(torch.optim.LBFGS([param], lr=10.0), [param])
    before = param.detach().clone()
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        opt.zero_grad()
        loss = (param**3).sum()
        loss.backward()
        return loss

    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    assert torch.equal(param, before)


def test_a_wrapped_state_is_loaded_whole_or_not_at_all():
    params = [point(4, 6)]
    opt = oo.wrap(torch.optim.Adam(params, lr=0.1), params)
    set_gradients(params)
    opt.step()
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"] = saved["param_groups"] * 2
    others = clones(params)
    other = oo.wrap(torch.optim.Adam(others, lr=0.1), others)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        other.load_state_dict(saved)
    assert not other.lander.state
