"""Identities of the relative gradient: they hold on and off the manifold, for real and complex matrices."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from orthoptim import stiefel
from orthoptim.stiefel.batches import at_least, at_most, is_single
from tests import reference
from tests.strategies import (
    COMPLEX,
    DOUBLE,
    DTYPES,
    doubles,
    dtypes,
    eps,
    gaussian,
    gradient,
    kinds,
    orthonormal,
    seeds,
    shapes,
)

norm = torch.linalg.matrix_norm
points = st.sampled_from([orthonormal, gaussian])  # on the manifold, and anywhere


@given(shapes(), dtypes, seeds)
def test_sym_and_skew_are_the_hermitian_and_the_skew_hermitian_part(shape, dtype, seed):
    a = gaussian((*shape[:-2], shape[-1], shape[-1]), dtype, seed)
    sym, skew = stiefel.sym(a), stiefel.skew(a)
    assert torch.equal(sym, sym.mH)
    assert torch.equal(skew, -skew.mH)
    torch.testing.assert_close(sym + skew, a)


@given(shapes(), dtypes, seeds)
def test_inner_is_the_real_inner_product_of_each_pair(shape, dtype, seed):
    a, b = gaussian(shape, dtype, seed), gaussian(shape, dtype, seed + 1)
    expected = reference.each(lambda a, b: np.vdot(a, b).real, a, b)
    assert stiefel.inner(a, b).dtype == dtype.to_real()
    np.testing.assert_allclose(stiefel.inner(a, b), expected, atol=100 * eps(dtype))


@given(shapes(), dtypes, seeds, st.booleans())
def test_square_norm_is_that_of_each_matrix_however_they_lie_in_memory(shape, dtype, seed, batch_last):
    a = gaussian(shape, dtype, seed)
    if batch_last:
        a = a.movedim(0, -1).contiguous().movedim(-1, 0)
    expected = reference.each(lambda a: (abs(a) ** 2).sum(), a)
    assert stiefel.square_norm(a).dtype == dtype.to_real()
    np.testing.assert_allclose(stiefel.square_norm(a), expected, rtol=100 * eps(dtype))


def test_a_matrix_is_scaled_where_its_norm_is_not_that_of_orthonormal_rows():
    ratios = torch.tensor([0.0, 0.94, 0.96, 1.0, 1.04, 1.06, 9.0, torch.inf, torch.nan])
    assert stiefel.is_scaled(3 * ratios, 3).tolist() == [True, True, False, False, False, True, True, True, True]


class CountOperations(TorchDispatchMode):
    """Counts the operations inside."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("shape", "tiny"), [((3, 3), True), ((4, 4), True), ((2, 8), True), ((3, 6), False), ((9, 9), False)]
)
def test_square_norm_runs_along_the_batch_only_where_that_is_last_and_matrices_are_tiny(shape, tiny):
    """Entry by entry it writes no squares, but takes an operation for each entry."""
    last = gaussian((*shape, 100), torch.float32, 0).movedim(-1, 0)
    for a, along in ((last, tiny), (last.contiguous(), False)):
        with CountOperations() as operations:
            stiefel.square_norm(a)
        assert (operations.count >= shape[0] * shape[1]) == along


def test_norms_of_lazily_conjugated_matrices():
    a = gaussian((3, 4, 6), torch.complex64, 0)
    for norm in (stiefel.square_norm, stiefel.norm, stiefel.max_entry):
        torch.testing.assert_close(norm(a.conj()), norm(a))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 1, 1), (5, 3, 3), (5, 4, 4), (5, 2, 8), (1, 3, 3), (5, 4, 5)])
def test_square_norm_of_tiny_matrices_whose_batch_is_last_in_memory(shape, dtype):
    a = gaussian((*shape[1:], shape[0]), dtype, 0).movedim(-1, 0)
    expected = reference.each(lambda a: (abs(a) ** 2).sum(), a)
    np.testing.assert_allclose(stiefel.square_norm(a), expected, rtol=100 * eps(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_overflows_and_underflows_only_where_it_must(dtype):
    a = gaussian((2, 3, 4), dtype, 0)
    expected = reference.each(np.linalg.norm, a)
    info = torch.finfo(dtype)
    for size in (info.tiny, 1e-25, 1.0, 1e25, info.max / 100):
        np.testing.assert_allclose(reference.double(stiefel.norm(size * a)) / size, expected, rtol=1e-5)
    assert stiefel.norm(torch.zeros(2, 3, 4, dtype=dtype)).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_lerp_is_a_weighted_mean(dtype):
    a, b = gaussian((2, 3, 4), dtype, 0), gaussian((2, 3, 4), dtype, 1)
    torch.testing.assert_close(stiefel.lerp(a, b, 0.3), 0.7 * a + 0.3 * b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-10, 1.0, 1e10])
def test_a_matrix_is_deficient_where_its_least_singular_value_is_rounding_of_its_largest(size, dtype):
    u = eps(dtype) / 2
    least = torch.tensor([0.0, 3 * 0.5 * u, 3 * 2 * u, 1e-2], dtype=dtype.to_real())
    x = torch.zeros(4, 3, 5, dtype=dtype)
    x[:, 0, 1], x[:, 1, 0], x[:, 2, 4] = size, -size, least * size
    assert stiefel.is_deficient(x).tolist() == [True, True, False, False]
    assert stiefel.is_deficient(torch.zeros(2, 3, dtype=dtype))
    assert not stiefel.is_deficient(torch.eye(2, 3, dtype=dtype))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_entries_that_are_not_finite_count_as_zero_for_the_rank(bad):
    x = torch.eye(2, 3)
    x[0, 0] = bad
    assert stiefel.is_deficient(x)
    x[0, 2] = 1
    assert not stiefel.is_deficient(x)


@given(shapes(), dtypes, seeds)
def test_max_entry_is_that_of_each_matrix(shape, dtype, seed):
    a = gaussian(shape, dtype, seed)
    expected = reference.each(lambda a: max(abs(a.real).max(), abs(a.imag).max()), a)
    np.testing.assert_array_equal(stiefel.max_entry(a), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_max_entry_is_not_finite_for_the_matrices_with_an_entry_that_is_not(dtype, value):
    a = gaussian((2, 3, 4), dtype, 0)
    a[1, 2, 0] = value
    assert torch.isfinite(stiefel.max_entry(a)).tolist() == [True, False]


@pytest.mark.parametrize("dtype", COMPLEX)
def test_max_entry_of_huge_complex_entries_does_not_overflow(dtype):
    huge = torch.finfo(dtype).max / 4
    assert float(stiefel.max_entry(torch.tensor([[complex(huge, -huge)]], dtype=dtype))) == huge


@given(shapes(), dtypes, seeds, points)
def test_relative_gradient_equals_the_reference(shape, dtype, seed, point):
    x, g = point(shape, dtype, seed), gaussian(shape, dtype, seed + 1)
    expected = reference.each(reference.relative_gradient, x, g)
    scale = 1 + reference.each(lambda x: np.linalg.norm(x) ** 2, x).max()
    np.testing.assert_allclose(stiefel.relative_gradient(x, g), expected, atol=100 * eps(dtype) * scale)


@given(shapes(), dtypes, seeds)
def test_defect_and_distance_equal_the_reference(shape, dtype, seed):
    x = gaussian(shape, dtype, seed)
    scale = reference.each(lambda x: np.linalg.norm(x) ** 2, x).max()
    np.testing.assert_allclose(stiefel.defect(x), reference.each(reference.defect, x), atol=10 * eps(dtype) * scale)
    expected = reference.each(lambda x: np.linalg.norm(reference.defect(x)), x)
    np.testing.assert_allclose(stiefel.distance(x), expected, atol=10 * eps(dtype) * scale)


@given(shapes(), doubles, seeds, kinds, points, st.floats(0, 10))
def test_fact_1_a_leap_adds_exactly_eta_squared_r_r_on_and_off_the_manifold(shape, dtype, seed, kind, point, eta):
    x = point(shape, dtype, seed)
    g = gradient(x, seed + 1, kind=kind)
    r = stiefel.relative_gradient(x, g)
    m = x - eta * r
    difference = stiefel.defect(m) - (stiefel.defect(x) + eta**2 * r @ r.mH)
    # the terms that cancel are as large as η‖X‖³‖G‖
    scale = 1 + norm(x) ** 2 + eta * norm(x) ** 3 + eta**2 * norm(r) ** 2
    assert (norm(difference) <= 20 * eps(dtype) * scale).all()


@given(shapes(), doubles, seeds, kinds, st.floats(0, 10))
def test_fact_1_on_the_manifold_no_singular_value_shrinks(shape, dtype, seed, kind, eta):
    x = orthonormal(shape, dtype, seed)
    m = x - eta * stiefel.relative_gradient(x, gradient(x, seed + 1, kind=kind))
    assert (torch.linalg.eigvalsh(stiefel.defect(m)) >= -100 * eps(dtype) * (1 + eta**2)).all()


@given(shapes(), doubles, seeds, kinds, st.floats(0, 10))
def test_fact_2_a_leap_leaves_the_manifold_by_at_most_eta_squared_s_squared(shape, dtype, seed, kind, eta):
    x = orthonormal(shape, dtype, seed)
    g = gradient(x, seed + 1, kind=kind)
    s = stiefel.skew(x.mH @ g)
    c = stiefel.defect(x - eta * stiefel.relative_gradient(x, g))
    for order in ("fro", 2):
        bound = eta**2 * norm(s @ s, order)
        assert (norm(c, order) <= bound + 100 * eps(dtype) * (1 + eta**2)).all()


@given(shapes(), doubles, seeds, kinds, points)
def test_fact_7_g_and_r_have_inner_product_the_squared_norm_of_the_skew_part(shape, dtype, seed, kind, point):
    x = point(shape, dtype, seed)
    g = gradient(x, seed + 1, kind=kind)
    descent = stiefel.inner(g, stiefel.relative_gradient(x, g))
    expected = norm(stiefel.skew(x.mH @ g)) ** 2
    assert ((descent - expected).abs() <= 20 * eps(dtype) * norm(x) ** 2).all()


@pytest.mark.parametrize("dtype", DOUBLE)
def test_fact_7_a_small_step_along_minus_r_descends(dtype):
    x, target = orthonormal((20, 4, 6), dtype, 0), gaussian((20, 4, 6), dtype, 1)

    def loss(x):
        return 0.5 * norm(x - target) ** 2

    r = stiefel.relative_gradient(x, x - target)
    assert (loss(x - 1e-3 * r) < loss(x)).all()


@given(shapes(), doubles, seeds, points)
def test_gradients_normal_to_the_manifold_have_relative_gradient_zero(shape, dtype, seed, point):
    x = point(shape, dtype, seed)
    r = stiefel.relative_gradient(x, gradient(x, seed + 1, kind="normal"))
    assert (norm(r) <= 20 * eps(dtype) * norm(x) ** 2).all()


def test_one_matrix_on_a_cpu_is_single_whatever_its_shape(monkeypatch):
    shapes = ((1, 3, 4), (1, 1, 4), (2, 1, 4), (2, 3, 4), (0, 3, 4))
    assert [is_single(torch.empty(shape)) for shape in shapes] == [True, True, False, False, False]
    assert not is_single(torch.empty(1, 3, 4, device="meta"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not is_single(torch.empty(1, 3, 4))


def test_numbers_of_python_and_of_tensors_have_the_same_functions():
    for number in (4.0, 0.25):
        for function, expected in (
            (lambda a: at_least(a, 1.0), max(number, 1.0)),
            (lambda a: at_most(a, 1.0), min(number, 1.0)),
        ):
            assert function(number) == expected
            assert function(torch.tensor([number])).tolist() == [expected]
