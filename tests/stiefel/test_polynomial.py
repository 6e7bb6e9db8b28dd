"""The landing polynomial P(λ) = ‖X⁺X⁺ᴴ − I‖_F² and the two λ taken from it."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from orthoptim.stiefel import polynomial
from tests import reference
from tests.strategies import DOUBLE, DTYPES, doubles, eps, gaussian, log_uniform, orthonormal, seeds, shapes

SOLVERS = {"root": polynomial.root, "argmin": polynomial.argmin}


def hermitian(eigenvalues, dtype, seed):
    """A Hermitian matrix (..., p, p) with the given eigenvalues (..., p)."""
    p = eigenvalues.shape[-1]
    u = orthonormal((*eigenvalues.shape[:-1], p, p), dtype, seed)
    c = (u * eigenvalues[..., None, :].to(dtype)) @ u.mH
    return 0.5 * (c + c.mH)


def single(c):
    """The λ with (1+c)(1−λc)² = 1 near ½: what both solvers must return if all eigenvalues are c or 0."""
    return -math.expm1(-0.5 * math.log1p(c)) / c


@given(shapes(), doubles, seeds, st.floats(-1, 2))
def test_the_coefficients_are_those_of_the_squared_distance_after_landing(shape, dtype, seed, scale):
    m = gaussian(shape, dtype, seed) / math.sqrt(shape[-1])
    c = torch.from_numpy(reference.each(reference.defect, m))
    a3, a2, a1, a0 = polynomial.quartic(c)
    t2 = torch.linalg.matrix_norm(c) ** 2
    value = t2 * (1 + scale * (a3 + scale * (a2 + scale * (a1 + scale * a0))))
    landed = reference.each(lambda m: reference.land(m, scale), m)
    expected = reference.each(lambda x: np.linalg.norm(reference.defect(x)) ** 2, landed)
    size = t2 * (1 + a3.abs() + a2.abs() + a1.abs() + a0.abs()) * max(1, scale**4)  # of the terms that cancel
    assert (abs(value.numpy() - expected) <= 1e-13 * (1 + size.numpy())).all()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("m", "expected"),
    [
        ([[1, -0.01]], single(1e-4)),
        ([[1, -0.5]], single(0.25)),
        ((np.eye(3) * (1 + 1e-4)).tolist(), single(2e-4 + 1e-8)),
        (np.diag([1.003, 1.001, 1]).tolist(), None),
    ],
    ids=["[1,-.01]", "[1,-.5]", "(1+1e-4)I", "diag"],
)
def test_inputs_on_which_the_published_root_fails_have_the_true_lambda(m, expected, dtype, solver):
    m = torch.tensor(m, dtype=torch.float64).to(dtype)
    c = reference.defect(reference.double(m))
    if expected is None:
        expected = getattr(reference, solver)(c)
        assert expected == pytest.approx(0.5, abs=3e-3)
    found = SOLVERS[solver](torch.from_numpy(c).to(dtype))
    tolerance = 1e-12 if eps(dtype) < 1e-10 else 1e-6  # [1, −.01] is not a float32 number
    assert float(found) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_the_complex_input_on_which_the_published_root_fails_has_the_true_lambda(dtype, solver):
    found = SOLVERS[solver](torch.tensor([[1, 1j], [-1j, 1]], dtype=dtype))
    assert found.dtype == dtype.to_real()
    assert float(found) == pytest.approx(single(2), rel=10 * eps(dtype))
    assert float(found) == pytest.approx(0.211, abs=5e-4)


@st.composite
def defects(draw, low, high, max_p=6):
    """C = MMᴴ − I of norm 10^low … 10^high, MMᴴ > 0: semidefinite, of rank one or indefinite."""
    dtype, p, seed = draw(doubles), draw(st.integers(1, max_p)), draw(seeds)
    size = draw(log_uniform(low, high))
    kind = draw(st.sampled_from(["semidefinite", "rank one", "indefinite"]))
    e = gaussian((p,), torch.float64, seed) ** 2
    if kind == "rank one":
        e[1:] = 0
    e = e * size / torch.linalg.vector_norm(e)
    if kind == "indefinite":
        # down to −½, where a landing may leave them
        sign = torch.sign(gaussian((p,), torch.float64, seed + 1))
        e = torch.maximum(e * sign, torch.tensor(-0.5, dtype=torch.float64))
    return hermitian(e, dtype, seed + 2)


@settings(max_examples=300)
@given(defects(-12, 3))
def test_root_agrees_with_numpy_to_1e_9(c):
    assert float(polynomial.root(c)) == pytest.approx(reference.root(c.numpy()), rel=1e-9)


@settings(max_examples=300)
@given(defects(-12, 3))
def test_argmin_agrees_with_numpy_to_1e_9(c):
    assert float(polynomial.argmin(c)) == pytest.approx(reference.argmin(c.numpy()), rel=1e-9)


@pytest.mark.parametrize("eigenvalues", [[-0.97, 0.26], [-0.85, -0.85, -0.85, 0.55], [10.0, 12.0, 12.0, 12.0, 19.2]])
def test_root_takes_the_pair_of_smallest_modulus_also_where_the_pairs_are_close(eigenvalues):
    c = torch.diag(torch.tensor(eigenvalues, dtype=torch.float64))
    assert float(polynomial.root(c)) == pytest.approx(reference.root(c.numpy()), rel=1e-9)


def exact_argmin(c):
    """The least positive λ with P′(λ) = 0, in 40 digits from the entries of C as they are."""
    with mpmath.workdps(40):
        c = mpmath.matrix(c.tolist())
        power, traces = c * c, {}
        for k in range(2, 7):
            traces[k] = mpmath.re(sum(power[i, i] for i in range(len(c))))
            power = power * c
        t2, t3, t4, t5, t6 = (traces[k] / traces[2] for k in range(2, 7))
        slope = [-(t2 + t3), 2 * t2 + 5 * t3 + 3 * t4, -3 * (t3 + 2 * t4 + t5), t4 + 2 * t5 + t6]  # of P(1/z)z³/4
        roots = mpmath.polyroots(slope, maxsteps=200, extraprec=200)
        return float(1 / max(mpmath.re(z) for z in roots if abs(mpmath.im(z)) < 1e-20 * (abs(z) + 1e-30)))


@settings(max_examples=60)
@given(defects(-12, 0, max_p=4))
def test_argmin_has_a_relative_error_of_at_most_1e_14(c):
    assert float(polynomial.argmin(c)) == pytest.approx(exact_argmin(c), rel=1e-14)


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("solver", SOLVERS)
def test_lambda_tends_to_one_half_with_c(solver, dtype):
    scales = torch.tensor([1e-2, 1e-6, 1e-12, 1e-100, 0], dtype=torch.float64)
    c = hermitian(scales[:, None] * gaussian((5, 3), torch.float64, 0), dtype, 1)
    found = SOLVERS[solver](c)
    size = torch.linalg.matrix_norm(c)
    assert ((found - 0.5).abs() <= size + 4 * eps(dtype)).all()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("low", "high"), [(0.0, 2.0), (-0.5, 1.0)])
@pytest.mark.parametrize("dtype", DOUBLE)
def test_i_minus_lambda_c_is_positive_definite_so_that_no_direction_flips(dtype, low, high, solver):
    # [0, 2): a leap from the manifold of ‖ηR‖₂ < √2. [−½, 1]: whatever `safe` may leave behind, and a leap of length 1.
    # Beyond, P itself can have its least value past 1/λmax(C): no choice of branch helps there.
    rng = np.random.default_rng(0)
    least = math.inf
    for p in range(1, 9):
        e = rng.uniform(low, high, (2000, p))
        corner = rng.choice([low, high], (2000, p))
        e = np.where(rng.random((2000, p)) < 0.5, e, corner)  # half of them at the ends
        e = np.concatenate([e, np.repeat(e[:, :1], rng.integers(0, 8), axis=1)], axis=1)  # and one many times
        e = torch.from_numpy(e) * (1 - 1e-9)
        found = SOLVERS[solver](hermitian(e, dtype, p))
        least = min(least, float((1 - found[:, None] * e).min()))
    assert least > 0


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=100)
@given(size=log_uniform(-12, 3), dtype=doubles, seed=seeds, p=st.integers(1, 6))
def test_a_single_direction_lands_exactly_however_long_the_leap(solver, size, dtype, seed, p):
    e = torch.zeros(p, dtype=torch.float64)
    e[0] = size
    found = SOLVERS[solver](hermitian(e, dtype, seed))
    assert float(found) == pytest.approx(single(size), rel=1e-9)
    assert float(found) * size < 1


@given(st.floats(-10, 10), st.floats(-10, 10), st.floats(-10, 10))
def test_the_largest_root_of_a_cubic_with_three_real_roots(a, b, c):
    largest, middle, least = sorted([a, b, c], reverse=True)
    size = max(abs(largest), abs(least))
    assume(size > 1e-3 and largest - middle > 1e-2 * size)  # a double root is one that rounding may turn complex
    a, b, c = (torch.tensor(v, dtype=torch.float64) for v in (a, b, c))
    found = polynomial.largest_cubic_root(-(a + b + c), a * b + b * c + c * a, -a * b * c)
    assert float(found) == pytest.approx(largest, abs=1e-11 * size)


@given(st.floats(-10, 10), st.floats(-10, 10), st.floats(0.1, 10))
@example(0.0, 0.0, 2.0)  # z³ + 4z: the depressed cubic has no constant term
def test_the_only_real_root_of_a_cubic(a, re, im):
    a, re, im = (torch.tensor(v, dtype=torch.float64) for v in (a, re, im))
    square = re**2 + im**2
    found = polynomial.largest_cubic_root(-(a + 2 * re), square + 2 * a * re, -a * square)
    assert float(found) == pytest.approx(float(a), abs=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=20)
@given(shape=shapes(), seed=seeds, dtype=st.sampled_from(DTYPES))
def test_each_matrix_of_a_batch_has_its_own_lambda(solver, shape, seed, dtype):
    *batch, p, _ = shape
    c = hermitian(gaussian((*batch, p), torch.float64, seed).abs().to(dtype.to_real()) / 3, dtype, seed)
    found = SOLVERS[solver](c)
    assert found.shape == torch.Size(batch)
    assert found.dtype == dtype.to_real()
    expected = reference.each(getattr(reference, solver), c)
    np.testing.assert_allclose(found, expected, rtol=1e-5 if eps(dtype) > 1e-10 else 1e-9)


def test_newton_s_method_finds_a_factor_from_nearby():
    b, d, e, f = (torch.tensor(value, dtype=torch.float64) for value in (-1.5, 0.9, -0.4, 0.3))
    coefficients = b + e, d + f + b * e, b * f + d * e, d * f
    found = polynomial._polish_factor(*coefficients, b + 1e-3, d - 1e-3)
    torch.testing.assert_close(torch.stack(found), torch.stack([b, d]), rtol=0, atol=1e-14)


def test_a_largest_root_far_smaller_than_the_others_keeps_its_digits():
    x, y, z = (torch.tensor(value, dtype=torch.float64) for value in (1e-6, -1.0, -2.0))
    found = polynomial.largest_cubic_root(-(x + y + z), x * y + y * z + z * x, -x * y * z)
    torch.testing.assert_close(found, x, rtol=1e-14, atol=0)


def test_a_largest_root_beside_its_negative_keeps_its_digits():
    """The slope there is 2az, not b: a wrong one would undo Newton's method."""
    x = torch.tensor(1e-6, dtype=torch.float64)
    found = polynomial.largest_cubic_root(torch.ones_like(x), -(x**2), -(x**2))  # (z − x)(z + x)(z + 1)
    torch.testing.assert_close(found, x, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("larger", "smaller"),
    [
        ((-1.5, 0.9), (-0.4, 0.3)),
        ((0.5, 0.9), (-0.8, 0.3)),  # of the larger modulus, but of the smaller real part
        ((-0.3, 0.6), (-1.0, 0.5)),
        ((1.2, 0.7), (0.1, 0.2)),
        ((-0.2, 0.31), (0.2, 0.3)),
    ],
)
def test_the_factor_of_the_larger_roots_before_it_is_polished(larger, smaller):
    b, d, e, f = (torch.tensor(value, dtype=torch.float64) for value in (*larger, *smaller))
    found = polynomial.larger_factor(b + e, d + f + b * e, b * f + d * e, d * f)
    torch.testing.assert_close(torch.stack(found), torch.stack([b, d]), rtol=0, atol=1e-12)


def test_newton_s_method_leaves_two_equal_factors_as_they_are():
    b, d = (torch.tensor(value, dtype=torch.float64) for value in (-1.0, 0.5))
    found = polynomial._polish_factor(2 * b, b**2 + 2 * d, 2 * b * d, d**2, b, d)
    assert torch.equal(torch.stack(found), torch.stack([b, d]))


@pytest.mark.parametrize("coefficients", [(-2, 0, 0, 0), (0, 4, 0, 0), (0, 0, -8, 0), (0, 0, 0, 16), (-2, 4, -8, 16)])
def test_a_quartic_is_scaled_by_the_size_of_its_roots(coefficients):
    assert float(polynomial._root_scale(*torch.tensor(coefficients, dtype=torch.float64))) == pytest.approx(2)


def test_the_largest_root_of_a_cubic_of_zeros_is_zero():
    zero = torch.zeros((), dtype=torch.float64)
    assert float(polynomial.largest_cubic_root(zero, zero, zero)) == 0


def test_a_quartic_without_odd_terms_has_a_finite_factor():
    """The resolvent has no positive root then."""
    zero, d, f = (torch.tensor(value, dtype=torch.float64) for value in (0.0, 0.9, 0.3))
    assert all(map(torch.isfinite, polynomial.larger_factor(zero, d + f, zero, d * f)))


@pytest.mark.parametrize("exponent", [-100, -50, 0, 50, 101])
@pytest.mark.parametrize(
    ("coefficients", "root"),
    [((-1, 0, 0), 1), ((0, -1, 0), 1), ((0, 0, -1), 1), ((0, 0, 1), -1), ((-6, 11, -6), 3)],
)
def test_the_largest_root_of_a_cubic_scales_with_its_roots(coefficients, root, exponent):
    """Whichever coefficient is the one that tells their size: powers of the others overflow or underflow."""
    size = 10.0**exponent
    scaled = [torch.tensor(c * size**k, dtype=torch.float64) for k, c in enumerate(coefficients, 1)]
    assert float(polynomial.largest_cubic_root(*scaled)) / size == pytest.approx(root, rel=1e-13)
