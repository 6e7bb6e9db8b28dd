"""RGD and its retractions."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim import stiefel
from tests.conformance.methods import point, set_gradients

# RGD


def retracted(name, y):
    return stiefel.on_one_device(stiefel.RETRACTIONS[name](y)).x


@pytest.mark.parametrize("name", list(stiefel.RETRACTIONS))
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_retractions_are_retractions(name, dtype):
    """On the manifold, through X, and with derivative D there: the error against X + tD is of second order."""
    x = point(4, 7, dtype=dtype).detach()
    d = stiefel.tangent(x, torch.randn(4, 7, dtype=dtype))
    retract = partial(retracted, name)
    torch.testing.assert_close(retract(x), x, rtol=0, atol=1e-14)
    times = torch.tensor([1e-2, 1e-3], dtype=torch.float64)
    errors = [float(torch.linalg.matrix_norm(retract(x + t * d) - (x + t * d))) for t in times]
    assert abs(math.log10(errors[0] / errors[1]) - 2) < 0.05
    assert stiefel.distance(retract(x + d)) < 1e-13


@given(
    dtype=st.sampled_from([torch.float32, torch.float64, torch.complex64]),
    name=st.sampled_from(list(stiefel.RETRACTIONS)),
    p=st.integers(1, 8),
    extra=st.integers(0, 8),
    seed=st.integers(0, 1000),
)
def test_retractions_are_nan_where_there_is_nothing_to_retract_to_and_neighbours_do_not_notice(
    dtype, name, p, extra, seed
):
    generator = torch.Generator().manual_seed(seed)
    retract = partial(retracted, name)
    x = point(7, p, p + extra, dtype=dtype, seed=seed).detach()
    good = x + 0.5 * torch.randn(x.shape, dtype=dtype, generator=generator)
    bad = good.clone()
    bad[1, -1, 0] = torch.nan
    bad[2, 0, -1] = torch.inf
    bad[3] = 0
    bad[4, -1] = bad[4, :-1].sum(0)  # nothing, where there is one row
    bad[5] *= 2.0**100  # changes no retraction
    new, expected = retract(bad), retract(good)
    assert torch.isnan(new[1:5]).all()
    others = [0, 5, 6]
    assert torch.equal(new[others].nan_to_num(), expected[others].nan_to_num())
    usable = torch.isfinite(expected).all(-1).all(-1)
    assert stiefel.distance(expected[usable]).max() < 200 * p * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["polar", "cholesky"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_whitening_twice_is_the_retraction(name, dtype):
    y = torch.randn(3, 4, 7, dtype=dtype)
    new = y
    for _ in range(2):
        new = stiefel.whitening(new @ new.mH, name) @ new
    torch.testing.assert_close(new, retracted(name, y), rtol=0, atol=1e-11)
    for wrong in (torch.nan, 0.0):
        gram = y @ y.mH
        gram[1] *= wrong
        assert torch.isnan(stiefel.whitening(gram, name)).all(-1).all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("name", list(stiefel.RETRACTIONS))
@pytest.mark.parametrize("poison", [1e25, torch.inf, torch.nan])
def test_rgd_freezes_a_matrix_whose_step_overflows_and_its_neighbours_step(name, poison):
    params = [point(3, 4, 6), point(3, 4, 6)]
    for param, size in zip(params, (1e-20, poison), strict=True):
        opt = oo.RGD([param], 1e20, retraction=name)
        param.grad = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
        param.grad *= torch.tensor([1e-20, size, 1e-20])[:, None, None]
        opt.step()
    assert opt.drift()[0].skipped == 1
    assert torch.equal(params[1][1], point(3, 4, 6)[1])
    assert torch.equal(params[0][::2], params[1][::2])


@pytest.mark.parametrize("name", list(stiefel.RETRACTIONS))
def test_rgd_freezes_a_matrix_that_holds_nan(name):
    param = point(3, 4, 6)
    other = torch.nn.Parameter(param.detach().clone())
    opts = [oo.RGD([x], 0.1, retraction=name) for x in (param, other)]
    with torch.no_grad():
        param[1, 2, 3] = torch.nan
    set_gradients([other])
    param.grad = other.grad.clone()
    for opt in opts:
        opt.step()
    assert opts[0].drift()[0].skipped == 1
    assert torch.equal(param[::2], other[::2])


def test_without_the_phases_qr_is_no_retraction():
    x = point(4, 7, dtype=torch.float64).detach()
    q, _ = torch.linalg.qr(x.mH)
    assert float((q.mH - x).abs().max()) > 0.1


@pytest.mark.parametrize("options", [{"metric": "flat"}, {"retraction": "exp"}])
def test_rgd_bad_options(options):
    with pytest.raises(ValueError, match=r"Invalid (metric|retraction)"):
        oo.RGD([point(4, 6)], 0.1, **options)
