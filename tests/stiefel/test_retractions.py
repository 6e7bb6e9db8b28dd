"""Retractions equal their formulas, and say what they cannot retract."""

import numpy as np
import pytest
import torch

from orthoptim import stiefel
from orthoptim.stiefel import retractions
from tests import reference
from tests.pieces import in_pieces
from tests.strategies import DOUBLE, DTYPES, eps, gaussian, orthonormal


def gram_schmidt(y):
    """The rows orthonormalised from the first on."""
    lower = np.linalg.cholesky(y @ reference.adjoint(y))
    return np.linalg.solve(lower, y)


def retract(name, y):
    return stiefel.on_one_device(stiefel.RETRACTIONS[name](y)).x


def project_where(mask, x):
    return stiefel.on_one_device(stiefel.project_where(mask, x)).x


ORACLES = {"qr": gram_schmidt, "cholesky": gram_schmidt, "polar": reference.polar}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("name", ORACLES)
def test_a_retraction_equals_its_formula_at_any_size(name, size, dtype):
    y = orthonormal((2, 3, 4, 6), dtype, 0) + 0.2 * gaussian((2, 3, 4, 6), dtype, 1)
    expected = reference.each(ORACLES[name], y)
    new = retract(name, size * y)
    np.testing.assert_allclose(reference.double(new), expected, rtol=0, atol=200 * eps(dtype))
    assert stiefel.distance(new).max() <= 20 * eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ORACLES)
def test_the_largest_and_the_smallest_numbers_are_retracted(name, dtype):
    info = torch.finfo(dtype)
    for size in (info.max / 2, info.tiny):
        y = size * torch.eye(2, 3, dtype=dtype)
        torch.testing.assert_close(retract(name, y), torch.eye(2, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_finite_is_rescaled_by_a_power_of_two(dtype):
    y = gaussian((3, 2, 3), dtype, 0)
    y[1, 0, 0] = torch.nan
    sizes = torch.tensor([1e-20, 1.0, 1e20], dtype=y.real.dtype)[:, None, None]
    rescaled = stiefel.on_one_device(retractions._rescaled(y * sizes))
    largest = stiefel.max_entry(rescaled[[0, 2]])
    assert ((largest >= 2) & (largest <= 4)).all()
    exponent = torch.log2(stiefel.max_entry((y * sizes)[[0, 2]]) / largest)
    assert torch.equal(exponent, exponent.round())
    assert torch.isnan(stiefel.max_entry(rescaled[1]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_the_place_of_what_is_not_finite_the_identity_is_decomposed(dtype):
    y = gaussian((3, 2, 3), dtype, 0)
    y[1, 0, 0] = torch.nan
    prepared, finite = retractions._identity_unless_finite(y)
    assert finite.tolist() == [True, False, True]
    assert torch.equal(prepared[1], torch.eye(2, 3, dtype=dtype))
    assert torch.equal(prepared[[0, 2]], y[[0, 2]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", [1, 2, 3, 4])
def test_polar_retracts_ill_conditioned_matrices_onto_the_manifold(exponent, dtype):
    """It is orthonormal to rounding at any condition number, and the nearest point up to u times that of YYᴴ."""
    least = {torch.float32: 3e-6, torch.float64: 3e-14}[dtype.to_real()] ** (exponent / 4)
    values = torch.logspace(0, np.log10(least), 4, dtype=torch.float64)[:, None].to(dtype)
    left, right = orthonormal((4, 4), dtype, 0), orthonormal((4, 6), dtype, 1)
    y = left @ (values * right)
    new = retract("polar", y)
    assert stiefel.distance(new) <= 40 * eps(dtype)
    assert (new - left @ right).abs().max() <= min(10 * eps(dtype) / least**2, 0.02)
    y[-1] = y[0]
    assert torch.isnan(retract("polar", y)).all()


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("name", ["polar", "cholesky"])
def test_pieces_of_a_retraction_are_those_of_the_whole(name, dtype):
    y = gaussian((4, 3, 7), dtype, 0)
    y[1, 1] = y[1, 0]
    y[2, 0, -1] = torch.inf
    results = in_pieces(lambda y, _: stiefel.RETRACTIONS[name](y), y, y)
    new = torch.cat([piece.x for piece in results], -1)
    torch.testing.assert_close(new, retract(name, y), rtol=0, atol=1e-12, equal_nan=True)
    for piece in results:
        assert torch.isfinite(piece.finiteness_probe).tolist() == [True, False, False, True]
        assert torch.equal(piece.finiteness_probe[[0, 3]], results[0].finiteness_probe[[0, 3]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rank_is_full_where_the_least_value_is_more_than_rounding(dtype):
    rounding = 4 * 3 * eps(dtype)
    for largest in (1.0, 1e3):
        values = largest * torch.tensor([[1.0, 0.5, factor * rounding] for factor in (0.9, 1.1)], dtype=dtype)
        assert retractions.full_rank(values).tolist() == [False, True]
    assert not retractions.full_rank(torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("name", ["polar", "cholesky"])
def test_whitening_is_the_factor_of_the_retraction(name, dtype):
    y = gaussian((3, 4, 7), dtype, 0)
    w = stiefel.whitening(y @ y.mH, name)
    np.testing.assert_allclose(reference.double(w @ y), reference.each(ORACLES[name], y), rtol=0, atol=1e-12)
    if name == "polar":
        torch.testing.assert_close(w, w.mH)
    else:
        assert torch.equal(w, w.tril())


@pytest.mark.parametrize("name", ["polar", "cholesky"])
def test_whitening_is_nan_for_what_is_not_positive_definite_alone(name):
    gram = torch.eye(3, dtype=torch.float64).repeat(5, 1, 1)
    gram[1, 0, 0] = -1
    gram[2, 2, 2] = 1e-17
    gram[3, 0, 1] = gram[3, 1, 0] = torch.inf
    found = stiefel.whitening(gram, name)
    assert torch.isnan(found).all(-1).all(-1).tolist() == [False, True, True, True, False]
    torch.testing.assert_close(found[[0, 4]], gram[[0, 4]])


@pytest.mark.parametrize("dtype", DOUBLE)
def test_the_riemannian_gradients_are_tangent_and_those_of_their_metrics(dtype):
    x, g = orthonormal((3, 4, 6), dtype, 0), gaussian((3, 4, 6), dtype, 1)
    canonical = stiefel.tangent(x, g, "canonical")
    torch.testing.assert_close(canonical, 2 * stiefel.relative_gradient(x, g))
    euclidean = stiefel.tangent(x, g)
    torch.testing.assert_close(euclidean, g - 0.5 * (g @ x.mH + x @ g.mH) @ x)
    for d in (canonical, euclidean):
        assert stiefel.sym(d @ x.mH).abs().max() <= 1e-14


@pytest.mark.parametrize("dtype", DOUBLE)
def test_those_selected_are_projected_and_the_others_left_alone(dtype):
    x = gaussian((2, 3, 4, 6), dtype, 0)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    new = project_where(mask, x)
    assert torch.equal(new[~mask], x[~mask])
    np.testing.assert_allclose(new[mask], reference.each(reference.polar, x[mask]), rtol=0, atol=1e-12)
    assert project_where(torch.zeros_like(mask), x) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(5, 5), (7, 8), (3, 3), (16, 16)])
def test_which_others_are_projected_does_not_show_in_a_bit(shape, dtype):
    x = gaussian((50, *shape), dtype, 0)
    every = project_where(torch.ones(50, dtype=torch.bool), x)
    for mask in (torch.arange(50) >= 1, torch.arange(50) % 3 == 2, torch.arange(50) == 49):
        assert torch.equal(project_where(mask, x)[mask], every[mask])


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("mask", [[True, False, True], [False] * 3])
def test_projected_columns_are_those_of_the_projection(mask, dtype):
    x, mask = gaussian((3, 4, 7), dtype, 0), torch.tensor(mask)
    x[2, 1] = x[2, 0]
    results = in_pieces(lambda x, _: stiefel.project_where(mask, x), x, x)
    new = torch.cat([piece.x for piece in results], -1)
    torch.testing.assert_close(new, project_where(mask, x), rtol=0, atol=1e-12, equal_nan=True)
    for piece in results:
        assert torch.isfinite(piece.finiteness_probe).tolist() == [True, True, not mask[2]]
        assert piece.finiteness_probe[1] == 0
