"""Points of the manifold: uniformly random ones, the nearest one, and a near one by products alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orthoptim import stiefel
from orthoptim.functional import rounding
from orthoptim.stiefel.points import row_qr_factors
from tests import reference
from tests.strategies import DTYPES, doubles, dtypes, eps, gaussian, of_norm, orthonormal, seeds, shapes


def frobenius_distance(x):
    """‖XXᴴ − I‖_F in double precision, the worst of a batch."""
    return reference.each(lambda x: np.linalg.norm(reference.defect(x)), x).max()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# random


@given(shapes(), dtypes, seeds)
def test_random_points_are_on_the_manifold_to_rounding(shape, dtype, seed):
    x = stiefel.random(*shape, dtype=dtype, generator=generator(seed))
    assert x.shape == shape
    assert x.dtype == dtype
    assert frobenius_distance(x) <= rounding(dtype, shape[-2])


def test_random_points_are_those_of_their_generator():
    a, b, c = (stiefel.random(4, 3, 5, generator=generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


SAMPLES = 20_000
SIGMAS = 5


def assert_mean(samples, expected, deviation):
    """The sample mean is within five standard deviations of the mean."""
    assert abs(complex(samples.mean()) - expected) <= SIGMAS * deviation / math.sqrt(samples.numel())


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (2, 3), (3, 3)])
def test_random_real_points_are_haar_distributed(shape):
    n = shape[-1]
    x = stiefel.random(SAMPLES, *shape, dtype=torch.float64, generator=generator())
    for i, j in np.ndindex(shape):
        entry = x[:, i, j]
        assert_mean(entry, 0, math.sqrt(1 / n))
        assert_mean(entry.sign(), 0, 1)
        assert_mean(entry**2, 1 / n, 1 / n)
        assert_mean(entry**4, 3 / (n * (n + 2)), 1 / n)
    if shape == (n, n):
        assert_mean(torch.linalg.det(x), 0, 1)  # both components of O(n)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (2, 3), (3, 3)])
def test_random_complex_points_are_haar_distributed(shape):
    n = shape[-1]
    x = stiefel.random(SAMPLES, *shape, dtype=torch.complex128, generator=generator())
    for i, j in np.ndindex(shape):
        entry, phase = x[:, i, j], x[:, i, j].sgn()
        assert_mean(entry, 0, math.sqrt(1 / n))
        assert_mean(phase, 0, 1)
        assert_mean(phase**2, 0, 1)
        assert_mean(phase**3, 0, 1)
        assert_mean(entry.abs() ** 2, 1 / n, 1 / n)
        assert_mean(entry.abs() ** 4, 2 / (n * (n + 1)), 1 / n)
    if shape == (n, n):
        assert_mean(torch.linalg.det(x), 0, 1)


# nearest


@given(shapes(), doubles, seeds, st.floats(-3, 3))
def test_nearest_is_the_polar_factor(shape, dtype, seed, exponent):
    # conditioned well enough for the oracle, which squares Y
    y = 10**exponent * (orthonormal(shape, dtype, seed) + of_norm(gaussian(shape, dtype, seed + 1), 0.5))
    np.testing.assert_allclose(stiefel.nearest(y), reference.each(reference.polar, y), atol=1e-13)


@given(shapes(), doubles, seeds)
def test_no_random_point_is_nearer_than_nearest(shape, dtype, seed):
    y = gaussian(shape, dtype, seed)
    near = torch.linalg.matrix_norm(y - stiefel.nearest(y))
    other = torch.linalg.matrix_norm(y - stiefel.random(*shape, dtype=dtype, generator=generator(seed + 1)))
    assert (near <= other + 1e-13).all()


@given(shapes(), dtypes, seeds, st.integers(0, 3))
def test_nearest_is_on_the_manifold_to_rounding_whatever_the_rank(shape, dtype, seed, rank):
    *batch, p, n = shape
    y = gaussian((*batch, p, rank), dtype, seed) @ gaussian((*batch, rank, n), dtype, seed + 1)
    assert frobenius_distance(stiefel.nearest(y)) <= rounding(dtype, p)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4, 6)])
def test_nearest_to_zero_is_some_point_of_the_manifold(shape, dtype):
    assert frobenius_distance(stiefel.nearest(torch.zeros(shape, dtype=dtype))) <= rounding(dtype, shape[-2])


# newton_schulz


def near(shape, dtype, seed, distance):
    """Y with ‖YYᴴ − I‖₂ = distance: eigenvalues of YYᴴ anywhere within, and at the ends."""
    *batch, p, _ = shape
    eigenvalues = 1 + distance * (2 * torch.rand(*batch, p, dtype=torch.float64, generator=generator(seed)) - 1)
    eigenvalues[..., 0] = 1 - distance
    eigenvalues[..., -1] = 1 + distance if p > 1 else 1 - distance
    u, v = orthonormal((*batch, p, p), dtype, seed + 1), orthonormal(shape, dtype, seed + 2)
    return (u * eigenvalues.sqrt()[..., None, :]) @ v, u @ v


@given(shapes(), doubles, seeds, st.floats(0, 0.9))
def test_newton_schulz_converges_to_the_polar_factor_from_a_distance_of_nine_tenths(shape, dtype, seed, distance):
    y, polar = near(shape, dtype, seed, distance)
    torch.testing.assert_close(stiefel.newton_schulz(y), polar, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_newton_schulz_lands_on_the_manifold_to_rounding(dtype):
    y = near((50, 4, 6), torch.complex128 if dtype.is_complex else torch.float64, 0, 0.9)[0].to(dtype)
    assert frobenius_distance(stiefel.newton_schulz(y)) <= rounding(dtype, 4)


@given(shapes(), doubles, seeds)
def test_one_newton_schulz_step_squares_the_distance(shape, dtype, seed):
    y, _ = near(shape, dtype, seed, 1e-3)
    landed = stiefel.newton_schulz_step(y)
    assert reference.each(reference.spectral_distance, landed).max() <= 0.76e-6


# row_qr


@given(shapes(), doubles, seeds)
def test_row_qr_has_orthonormal_rows_and_a_triangular_factor_of_positive_diagonal(shape, dtype, seed):
    y = gaussian(shape, dtype, seed)
    q = stiefel.row_qr(y)
    assert frobenius_distance(q) <= rounding(dtype, shape[-2])
    r = q @ y.mH  # Yᴴ = QᴴR
    torch.testing.assert_close(r.tril(-1), torch.zeros_like(r), rtol=0, atol=1e-13)
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    assert (diagonal.real > 0).all()
    if dtype.is_complex:
        assert (diagonal.imag.abs() <= 1e-13).all()
    torch.testing.assert_close(q.mH @ r, y.mH, rtol=0, atol=1e-13)
    rows, pivots = row_qr_factors(y)
    assert torch.equal(rows, q)
    torch.testing.assert_close(pivots, diagonal.real, rtol=0, atol=1e-13)


@given(shapes(), doubles, seeds)
def test_row_qr_leaves_orthonormal_rows_as_they_are(shape, dtype, seed):
    x = orthonormal(shape, dtype, seed)
    torch.testing.assert_close(stiefel.row_qr(x), x, rtol=0, atol=1e-14 * shape[-1])


@given(shapes(), doubles, seeds)
def test_row_qr_is_continuous(shape, dtype, seed):
    x, d = orthonormal(shape, dtype, seed), of_norm(gaussian(shape, dtype, seed + 1), 1.0)
    moved = stiefel.row_qr(x + 1e-6 * d) - stiefel.row_qr(x - 1e-6 * d)
    assert (torch.linalg.matrix_norm(moved) <= 2e-6 * 2).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_qr_of_linearly_dependent_rows_is_still_orthonormal(dtype):
    y = torch.ones(3, 4, dtype=dtype)
    assert frobenius_distance(stiefel.row_qr(y)) <= rounding(dtype, 3)
    assert frobenius_distance(stiefel.row_qr(torch.zeros_like(y))) <= 10 * eps(dtype)
