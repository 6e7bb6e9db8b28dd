"""``scale``: XXᴴ = σ²I, in a step and everywhere a parameter is measured or made."""

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import METHODS, clones, every_method, point, set_gradients

SHAPES = [(3, 3), (4, 9), (9, 4), (5, 2, 3)]


def scaled_points(factor, dtype=torch.float32, shapes=SHAPES):
    points = [point(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    return points, [torch.nn.Parameter(factor * x.detach()) for x in points]


def run(opt, params, scale, steps=4):
    for t in range(steps):
        set_gradients(params, t, 0.3)
        for i, param in enumerate(params):  # the same numbers for both runs: they depend on X/σ alone
            generator = torch.Generator().manual_seed(100 * i + t)
            noise = torch.randn(param.shape, dtype=torch.float64, generator=generator).to(param.dtype)
            param.grad = (0.3 * noise + param.detach() / scale * (i + 1)) / scale
        opt.step()


@every_method
@pytest.mark.parametrize("scale", [4.0, 0.5])
def test_a_step_is_that_of_the_unscaled_matrices_bit_for_bit(make, scale):
    """X/σ has the gradient σ∇f(X); a power of two rounds nothing."""
    plain, scaled = scaled_points(scale)
    opts = make(plain), make(scaled, scale=scale)
    for opt, params, factor in ((opts[0], plain, 1.0), (opts[1], scaled, scale)):
        run(opt, params, factor)
    for x, y in zip(plain, scaled, strict=True):
        assert torch.equal(scale * x, y)
        for name, value in opts[0].state[x].items():
            assert torch.equal(value, opts[1].state[y][name]), name


@pytest.mark.parametrize("name", ["pogo", "stiefelmuon", "rgd", "slpg-bb"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.bfloat16])
def test_any_scale_and_dtype(name, dtype):
    scale = 0.3
    params = [torch.nn.Parameter(scale * point(*shape, dtype=dtype)) for shape in SHAPES]
    opt = METHODS[name](params, scale=scale)
    run(opt, params, scale)
    limit = {torch.float64: 1e-3, torch.complex64: 1e-3, torch.bfloat16: 5e-2}[dtype]
    for param in params:
        assert oo.distance(param, scale=scale).max() < limit
    assert opt.drift()[0].max_distance == max(float(oo.distance(param, scale=scale).max()) for param in params)


def test_rms_is_that_of_each_matrix_as_it_is_stored():
    linear = oo.orthogonalize_(torch.nn.Linear(16, 64), {"weight": "matrix"}, scale="rms")
    x = torch.randn(10, 16)
    y = x @ linear.weight.mT
    torch.testing.assert_close(y.square().mean(-1), x.square().mean(-1))
    wide = oo.orthogonalize_(torch.empty(16, 64), init="random", scale="rms")
    torch.testing.assert_close(wide @ wide.mT, torch.eye(16) / 4)
    params = [linear.weight, torch.nn.Parameter(wide), torch.nn.Parameter(torch.eye(4))]
    opt = oo.POGO(params, 0.1, scale="rms")
    run(opt, params, 1.0)
    assert all(oo.is_orthogonal(param, scale="rms", tol=1e-3) for param in params)
    assert not oo.is_orthogonal(params[0], tol=0.1)
    assert opt.drift()[0].max_distance < 1e-3


def test_frozen_matrices_keep_their_bits():
    x = torch.nn.Parameter(0.3 * point(5, 3, 7).detach())
    before = x.detach().clone()
    opt = oo.POGO([x], 0.1, scale=0.3)
    x.grad = torch.randn(5, 3, 7)
    x.grad[1, 0, 0] = torch.nan
    x.grad[3, 2, 1] = torch.inf
    opt.step()
    changed = (x.detach() != before).flatten(1).any(1)
    assert changed.tolist() == [True, False, True, False, True]


def test_checkpoints_hold_it_and_older_ones_have_none():
    x = torch.nn.Parameter(2 * point(3, 5).detach())
    opt = oo.POGO([x], 0.1, scale=2.0)
    run(opt, [x], 2.0, steps=1)
    saved = opt.state_dict()
    assert saved["param_groups"][0]["scale"] == 2.0
    (y,) = clones([x])
    other = oo.POGO([y], 0.1, scale=2.0)
    other.load_state_dict(saved)
    for each, param in ((opt, x), (other, y)):
        run(each, [param], 2.0)
    assert torch.equal(x, y)
    del saved["param_groups"][0]["scale"]
    with pytest.raises(ValueError, match="no scale in group 0"):
        other.load_state_dict(saved)
    (z,) = clones([point(3, 5)])
    plain = oo.POGO([z], 0.1)
    plain.load_state_dict(saved)
    assert plain.param_groups[0]["scale"] == 1.0


def test_groups_views_and_averages():
    model = torch.nn.Sequential(torch.nn.Linear(6, 12, bias=False), torch.nn.Linear(12, 6, bias=False))
    patterns = {
        "0.weight": {"view": oo.View("matrix", heads=2), "scale": 0.5},
        "1.*": {"view": "matrix", "scale": "rms"},
    }
    oo.orthogonalize_(model, patterns)
    opt = oo.POGO(oo.param_groups(model, patterns, lr=0.1))
    for _ in range(3):
        opt.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        opt.step()
    assert oo.distance(model[0].weight, view=oo.View("matrix", heads=2), scale=0.5).max() < 1e-3
    assert oo.distance(model[1].weight, scale="rms") < 1e-3
    assert all(row.max_distance < 1e-3 for row in opt.drift())
    weight = oo.project_(torch.randn(6, 12), scale=3.0)
    torch.testing.assert_close(weight @ weight.mT, 9 * torch.eye(6))
    generator = torch.Generator().manual_seed(0)
    rotation = oo.orthogonalize_(torch.empty(4, 4), init="random", det=1, scale=2.0, generator=generator)
    assert abs(float(torch.linalg.det(rotation)) - 16) < 1e-3


@pytest.mark.parametrize("scale", [0, -1.0, float("inf"), "mup", True, None])
def test_what_is_no_scale_is_refused(scale):
    with pytest.raises(ValueError, match="Invalid scale"):
        oo.POGO([point(3, 5)], 0.1, scale=scale)
    with pytest.raises(ValueError, match="Invalid scale"):
        oo.distance(torch.eye(3), scale=scale)


def test_parameters_of_another_scale_are_refused_with_the_cure():
    with pytest.raises(ValueError, match=r"scale=10\.0"):
        oo.POGO([point(3, 5)], 0.1, scale=10.0)


def test_wrapped_optimizers_keep_the_scale():
    x = torch.nn.Parameter(2 * point(4, 6).detach())
    opt = oo.wrap(torch.optim.Adam([x], lr=0.05), [{"params": [x], "scale": 2.0}])
    for t in range(4):
        set_gradients([x], t, 0.3)
        opt.step()
    assert oo.distance(x, scale=2.0) < 1e-3
