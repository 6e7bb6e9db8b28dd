"""Resuming equals never having stopped, bit for bit."""

import copy
import io

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import clones, every_method, method, point, set_gradients, steps

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128]
BASES = [oo.SGD(), oo.SGD(momentum=0.9, dampening=0.1), oo.VAdam(), oo.Adam(), oo.Muon()]
LANDINGS = ["safe", "strict", "half", "root", "argmin", "newton-schulz"]


def resume_equals_uninterrupted(make, params, **options):
    opt = make(params, **options)
    steps(opt, params, 3)

    file = io.BytesIO()
    torch.save({"params": [p.detach() for p in params], "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = [torch.nn.Parameter(value) for value in saved["params"]]
    reopened = make(resumed, **options)
    reopened.load_state_dict(saved["opt"])

    for t in range(3, 6):
        steps(opt, params, 1, t)
        steps(reopened, resumed, 1, t)
    for one, two in zip(params, resumed, strict=True):
        assert torch.equal(one, two)
        assert opt.state[one].keys() == reopened.state[two].keys()
        for name, value in opt.state[one].items():
            assert value.dtype == reopened.state[two][name].dtype
            assert torch.equal(value, reopened.state[two][name])


@every_method
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_resume_for_every_dtype(make, dtype):
    resume_equals_uninterrupted(make, [point(4, 6, dtype=dtype), point(2, 5, 3, dtype=dtype, seed=1)])


@every_method
@pytest.mark.parametrize("view", ["matrix", "filters", "kernels"])
@pytest.mark.parametrize("side", ["auto", "rows", "columns"])
def test_resume_for_every_view_and_side(make, view, side):
    shape = (18, 2, 3, 3) if view == "filters" else (3, 2, 3, 3)  # both sides possible
    resume_equals_uninterrupted(make, [point(*shape, view=view, side=side)], view=view, side=side)


@pytest.mark.parametrize("base", BASES, ids=repr)
@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_resume_for_every_base_landing_and_dtype(base, landing, dtype):
    """In one view each; every view with every base, every landing and every dtype."""
    shapes = {"matrix": (2, 4, 6), "filters": (4, 2, 3, 3), "kernels": (2, 2, 3, 3)}
    view = list(shapes)[(BASES.index(base) + LANDINGS.index(landing) + DTYPES.index(dtype)) % len(shapes)]
    params = [point(*shapes[view], dtype=dtype, view=view)]
    resume_equals_uninterrupted(method(oo.POGO, lr=0.1), params, base=base, landing=landing, view=view)


@every_method
def test_state_dict_is_plain(make):
    params = [point(4, 6)]
    opt = make(params)
    steps(opt, params, 2)
    for group in opt.state_dict()["param_groups"]:
        for key, value in group.items():
            flat = value if isinstance(value, list | tuple) else [value]
            assert all(isinstance(v, int | float | str | bool | None) for v in flat), key
    state = opt.state_dict()["state"][0]
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert all(value.shape in (torch.Size(), params[0].shape) for value in state.values())


@every_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_float32_state(make, dtype):
    params = [point(4, 6, dtype=dtype)]
    opt = make(params)
    steps(opt, params, 2)
    fresh = make(clones(params))
    fresh.load_state_dict(opt.state_dict())
    for optimizer in (opt, fresh):
        state = optimizer.state[optimizer.param_groups[0]["params"][0]]
        assert state["master"].dtype == torch.float32
        assert all(value.dtype == torch.float32 for value in state.values() if value.is_floating_point())
    assert oo.distance(opt.state[params[0]]["master"]) < 1e-2


@every_method
def test_a_loaded_state_is_a_copy(make):
    params = [point(4, 6)]
    opt = make(params)
    steps(opt, params, 2)
    saved = copy.deepcopy(opt.state_dict())
    loaded = opt.state_dict()
    others = clones(params)
    other = make(others)
    other.load_state_dict(loaded)
    steps(other, others, 2)
    for name, value in saved["state"][0].items():
        assert torch.equal(opt.state[params[0]][name], value)


@every_method
def test_writing_to_a_half_precision_parameter_is_honoured(make):
    """Loading weights, or an averaged copy, must not be undone by the master copy."""
    params = [point(2, 4, 6, dtype=torch.bfloat16)]
    opt = make(params)
    steps(opt, params, 2)
    written = point(4, 6, dtype=torch.bfloat16, seed=5).detach()
    kept = opt.state[params[0]]["master"][0].clone()
    with torch.no_grad():
        params[0][1] = written
    for group in opt.param_groups:
        group["lr"] = 0.0
    set_gradients(params)
    opt.step()
    torch.testing.assert_close(params[0][1], written, rtol=0, atol=2e-2)
    torch.testing.assert_close(opt.state[params[0]]["master"][0], kept, rtol=0, atol=1e-3)


@every_method
def test_loading_what_another_method_saved_is_refused(make):
    params = [point(4, 6)]
    opt = make(params)
    saved = opt.state_dict()
    saved["param_groups"][0]["algorithm"] = "other"
    with pytest.raises(ValueError, match="loaded state dict has algorithm 'other' in group 0"):
        opt.load_state_dict(saved)


@every_method
def test_loading_a_state_of_another_shape_is_refused(make):
    params = [point(4, 6)]
    opt = make(params, base=oo.SGD(momentum=0.9))
    steps(opt, params, 1)
    before = copy.deepcopy(opt.state[params[0]])
    other = make([point(3, 6)], base=oo.SGD(momentum=0.9))
    steps(other, other.param_groups[0]["params"], 1)
    saved = other.state_dict()
    with pytest.raises(ValueError, match=r"of shape \(3, 6\), not \(4, 6\), for parameter 0 of group 0 \(4×6\)"):
        opt.load_state_dict(saved)
    for name, value in before.items():
        assert torch.equal(opt.state[params[0]][name], value)
