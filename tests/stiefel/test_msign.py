"""The parts of the matrix sign, each against its formula."""

import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orthoptim.stiefel import msign
from orthoptim.stiefel.msign import FIVE_STEPS, MUON, POLAR_EXPRESS, gain, may_reduce, quintics
from tests.strategies import gaussian


def test_the_coefficients_of_muon_are_those_of_torch():
    assert inspect.signature(torch.optim.Muon).parameters["ns_coefficients"].default == MUON


def test_the_last_quintic_is_repeated():
    assert quintics("polar-express", 10) == [*POLAR_EXPRESS, POLAR_EXPRESS[-1], POLAR_EXPRESS[-1]]
    assert quintics("polar-express", 5) == list(FIVE_STEPS)
    assert quintics("polar-express", 3) == list(POLAR_EXPRESS[:3])
    assert quintics((1.0, 2.0, 3.0), 2) == [(1.0, 2.0, 3.0)] * 2


def largest_value(quintic, bound):
    """Of |ax + bx³ + cx⁵| on [0, bound], by looking at many points."""
    a, b, c = quintic
    x = torch.linspace(0, bound, 100_001, dtype=torch.float64)
    return float((a * x + b * x**3 + c * x**5).abs().max())


@given(st.lists(st.tuples(*[st.floats(-4, 4)] * 3), min_size=1, max_size=3))
def test_gain_is_the_largest_value_that_the_quintics_take(table):
    bound = 1.0
    for quintic in table:
        bound = largest_value(quintic, bound)
    expected = math.inf if bound > 1e3 else bound
    if not 900 < bound < 1100:  # where it is taken to diverge
        assert gain(table) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    "quintic",
    [
        (2.0, -3.0, 1.0),
        (2.0, -1.0, -3.0),
        (-1.0, 3.0, 1.0),
        (2.0, 0.0, -3.0),
        MUON,
        (1.0, 1.0, 1.0),
        (1.0, -2.0, 1e-13),
    ],
)
def test_gain_of_quintics_with_extrema_inside_outside_or_nowhere(quintic):
    assert gain([quintic]) == pytest.approx(largest_value(quintic, 1.0), rel=1e-6)


@pytest.mark.parametrize(
    "cubic", [(1.0, -1.0, 0.0), (3.0, -4.0, 0.0), (1.5, -0.5, 0.0), (2.0, 1.0, 0.0), (2.0, 0.0, 0.0)]
)
def test_gain_of_cubics(cubic):
    """Their extremum was left out: x − x³ was said to be 0 at most, its value at 1."""
    assert gain([cubic]) == pytest.approx(largest_value(cubic, 1.0), rel=1e-6)


def test_large_float32_matrices_may_be_reduced():
    sizes = ((torch.float32, 256), (torch.float32, 255), (torch.float64, 256), (torch.complex64, 256))
    assert [may_reduce(torch.empty(1, p, p, dtype=dtype)) for dtype, p in sizes] == [True, False, False, False]


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.bfloat16, 1.02), (torch.float32, 1 + 2**-11), (torch.complex128, 1 + 2**-11)]
)
def test_a_cushion_stretches_all_quintics(dtype, factor):
    for (a, b, c), (d, e, f) in zip(msign._cushioned(POLAR_EXPRESS, dtype), POLAR_EXPRESS, strict=True):
        for x in (0.3, 1.0):
            y = x / factor
            assert a * x + b * x**3 + c * x**5 == pytest.approx(d * y + e * y**3 + f * y**5, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_the_bound_of_the_largest_singular_value_is_tight(dtype):
    """‖A⁴‖_F^(1/8) and a hundredth: p^(1/16) times too large at most, exact for rank one."""
    p = 16
    for rank, most in ((1, 1.01), (p, 1.01 * p ** (1 / 8))):
        t = gaussian((1, p, rank), dtype, 0)
        a, square, bound = msign._scaled(t @ t.mH)
        largest = torch.linalg.matrix_norm(t, 2)
        ratio = float(bound / largest) ** 2
        assert 1 < ratio <= most * (1 + 1e-5)
        torch.testing.assert_close(a, t @ t.mH / bound[:, None, None] ** 2)
        torch.testing.assert_close(square, a @ a)


@pytest.mark.parametrize("size", [1e-6, 1.0])
def test_the_sign_of_a_skew_matrix_does_not_depend_on_its_size(size):
    k = gaussian((1, 6, 6), torch.float64, 0)
    k = k - k.mT
    left, _, right = torch.linalg.svd(k)
    torch.testing.assert_close(msign.msign_skew(size * k, quintics("polar-express", 8), False), left @ right)
