"""What somebody writes to a parameter after its optimizer was built."""

import warnings

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import point, set_gradients, steps

LANDINGS = ["safe", "strict", "half", "newton-schulz"]


def model():
    net = torch.nn.ModuleDict({name: torch.nn.Linear(6, 6, bias=False) for name in ("first", "second")})
    return oo.orthogonalize_(net, {"*.weight": "matrix"})


def named(net, **options):
    return oo.POGO(oo.param_groups(net, {"*.weight": "matrix"}, lr=0.1, rest=None, **options))


@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("factor", [3.0, 2.3, 1e3, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
def test_a_scaled_matrix_comes_back_is_counted_and_is_named_once(dtype, factor, landing):
    params = [point(5, 4, 6, dtype=dtype, seed=s) for s in range(2)]
    opt = oo.POGO([{"params": [("left", params[0]), ("right", params[1])]}], lr=0.01, landing=landing)
    with torch.no_grad():
        params[1][2].mul_(factor)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(60):
            set_gradients(params, t)
            opt.step()
            assert all(torch.isfinite(param.abs()).all() for param in params)
    rescued = opt.state[params[1]]["rescued"].tolist()
    if landing in ("safe", "strict"):
        assert rescued[2] > 0
        assert opt.drift()[0].rescued == sum(rescued)
        (warning,) = [str(w.message) for w in caught if "far from orthonormal" in str(w.message)]
        assert "'right'" in warning
        assert "1 of 5" in warning
    assert rescued[:2] + rescued[3:] == [0] * 4
    assert opt.state[params[0]]["rescued"].sum() == 0
    assert oo.distance(opt.state[params[1]].get("master", params[1])).max() <= 1e-3


def test_the_warning_points_at_the_line_that_steps():
    net = model()
    opt = named(net)
    with torch.no_grad():
        net["second"].weight.mul_(3)
    set_gradients(list(net.parameters()))
    with pytest.warns(UserWarning, match="'second.weight'") as caught:
        opt.step()
    assert caught[0].filename == __file__


def test_weights_loaded_after_construction_come_back():
    net = model()
    opt = named(net)
    net.load_state_dict({name: 2.5 * value + 0.3 for name, value in net.state_dict().items()})
    params = list(net.parameters())
    set_gradients(params, scale=0.1)
    with pytest.warns(UserWarning, match="far from orthonormal"):
        opt.step()
    steps(opt, params, 60)
    assert opt.drift()[0].max_distance <= 1e-3


@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("how", ["zero", "equal rows"])
def test_a_matrix_without_full_rank_is_frozen_counted_and_named(how, landing):
    params = [point(3, 4, 6)]
    opt = oo.POGO([("weight", params[0])], lr=0.1, landing=landing)
    with torch.no_grad():
        if how == "zero":
            params[0][1] = 0
        else:
            params[0][1, 1] = params[0][1, 0]
    before = params[0][1].clone()
    set_gradients(params)
    with pytest.warns(UserWarning, match=r"'weight'.*far from orthonormal"):
        opt.step()
    steps(opt, params, 4)
    assert torch.equal(params[0][1], before)
    assert opt.drift()[0].skipped == 5
    assert opt.state[params[0]]["num_updates"].tolist() == [5, 0, 5]
    assert (oo.distance(params[0])[[0, 2]] <= 1e-3).all()


@pytest.mark.usefixtures("eager_backend")
def test_a_compiled_step_names_what_it_rescues():
    params = [point(5, 3, 3, seed=s) for s in range(2)]
    opt = oo.POGO([("left", params[0]), ("right", params[1])], lr=0.1, compile=True)
    set_gradients(params)
    opt.step()
    with torch.no_grad():
        params[1][2].mul_(3)
    set_gradients(params)
    with pytest.warns(UserWarning, match=r"'right'.*1 of 5 matrices"):
        opt.step()
    assert opt.drift()[0].rescued == 1


def test_neighbours_of_a_far_matrix_step_as_they_would_without_it():
    runs = []
    for factor in (1.0, 3.0):
        param = point(5, 4, 6)
        opt = oo.POGO([param], lr=0.1)
        with torch.no_grad():
            param[2].mul_(factor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for t in range(3):
                param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(t))
                opt.step()
        runs.append(param.detach()[[0, 1, 3, 4]])
    assert torch.equal(*runs)


def test_nothing_is_written_that_float16_cannot_hold():
    param = point(2, 3, 5, dtype=torch.float16)
    opt = oo.LandingPC([param], lr=1e8, base=oo.SGD(), tau=None)
    param.grad = torch.ones_like(param)
    before = param.detach().clone()
    opt.step()
    assert torch.equal(param, before)
    assert opt.drift()[0].skipped == 2


def test_a_step_that_is_interrupted_between_two_blocks_has_skipped_the_others(monkeypatch):
    params = [point(4, 6), point(4, 7)]
    opt = oo.POGO(params, lr=0.1)
    set_gradients(params)
    plain, calls = oo.POGO.update_whole, []

    def fails_at_the_second(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("interrupted")
        return plain(*args)

    monkeypatch.setattr(oo.POGO, "update_whole", staticmethod(fails_at_the_second))
    with pytest.raises(RuntimeError, match="interrupted"):
        opt.step()
    monkeypatch.setattr(oo.POGO, "update_whole", staticmethod(plain))
    assert opt.drift()[0].skipped >= 0
    opt.step()
    assert opt.drift()[0].skipped >= 0


@pytest.mark.parametrize("p", [2, 3, 8])
def test_rows_of_length_one_that_are_not_orthogonal_are_far_away(p):
    """The diagonal of XXᴴ − I does not show it."""
    x = torch.eye(p)
    x[1, :2] = torch.tensor([0.9, 0.19**0.5])
    param = torch.nn.Parameter(torch.eye(p))
    opt = oo.POGO([param], lr=0.01)
    with torch.no_grad():
        param.copy_(x)
    param.grad = torch.zeros_like(param)
    with pytest.warns(UserWarning, match="was far from orthonormal"):
        opt.step()
    for _ in range(20):
        opt.step()
    assert opt.drift()[0].rescued > 0
    assert oo.distance(param) < 1e-5


@pytest.mark.parametrize("p", [2, 8])
def test_a_landing_that_overflows_where_the_leap_is_finite_writes_nothing(p):
    """‖MMᴴ‖ = 81 is not yet scaled down by the landings without a clip; cubed five times it is more than 1e38."""
    param = torch.nn.Parameter(torch.eye(p))
    opt = oo.POGO([param], lr=0.01, landing="newton-schulz", landing_steps=6)
    with torch.no_grad():
        param.mul_(9)
    param.grad = torch.ones_like(param)
    with pytest.warns(UserWarning, match="was far from orthonormal"):
        opt.step()
    assert torch.isfinite(param).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_drift_calls_deficient_what_steps_do_not_bring_back(dtype):
    """A condition number of 1e4 is far from rounding: the matrix comes back, the one beside it does not."""
    param = torch.nn.Parameter(torch.eye(4).expand(2, 4, 4).to(dtype).clone())
    opt = oo.POGO([param], lr=0.01)
    with torch.no_grad():
        param[0, 3, 3] = 1e-4
        param[1, 3] = param[1, 2]
    assert opt.drift()[0].deficient == 1
    param.grad = torch.zeros_like(param)
    with pytest.warns(UserWarning, match="was far from orthonormal"):
        opt.step()
    for _ in range(60):
        opt.step()
    assert oo.distance(param)[0] < 1e-2
    assert (opt.drift()[0].deficient, opt.drift()[0].skipped) == (1, 61)
