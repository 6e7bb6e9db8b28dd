"""What CG and L-BFGS take from the last two points: pairs, lengths, leaps; against their formulas."""

import pytest
import torch

import orthoptim as oo
from orthoptim import stiefel
from orthoptim.base.lbfgs import _two_loops
from orthoptim.base.secant import leap_along, secant, step_length, unit
from tests.strategies import gaussian, orthonormal

SOLVERS = [oo.CG(), oo.LBFGS(history_size=2)]
every_solver = pytest.mark.parametrize("base", SOLVERS, ids=repr)


def pair_of(cosine, size=2.0, change=3.0, dtype=torch.float64):
    """S of norm ``size`` and Y of norm ``change``, 1×2, with the given cosine between them."""
    s = torch.tensor([[[size, 0.0]]], dtype=dtype)
    return s, change * torch.tensor([[[cosine, (1 - cosine**2) ** 0.5]]], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_secant_is_normalised_so_that_its_inner_product_is_one(dtype):
    (s, y), known = pair_of(0.6, dtype=dtype), torch.tensor([True])
    found = secant(s, y, known)
    torch.testing.assert_close(found.s, s / 2)
    torch.testing.assert_close(found.y, y / 3 / 0.6)
    torch.testing.assert_close(found.length, torch.tensor([4 / (6 * 0.6)], dtype=dtype))
    torch.testing.assert_close(stiefel.inner(found.s, found.y), torch.ones(1, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pair_tells_nothing_below_the_root_of_the_rounding_unit(dtype):
    least = torch.finfo(dtype).eps ** 0.5
    for cosine, usable in ((1.2 * least, True), (0.8 * least, False), (0.0, False), (-0.6, False)):
        found = secant(*pair_of(cosine, dtype=dtype), torch.tensor([True]))
        assert [bool(part.any()) for part in found] == [usable] * 3


@pytest.mark.parametrize(
    ("s", "y", "known"),
    [
        (*pair_of(0.6), False),
        (*pair_of(0.6, size=0.0), True),
        (*pair_of(0.6, change=0.0), True),
        (*pair_of(0.6, size=1e300, change=1e-300), True),  # a length that overflows
        (*pair_of(0.6, size=float("inf")), True),
    ],
)
def test_a_pair_that_is_not_known_or_not_finite_is_all_zeros(s, y, known):
    for part in secant(s, y, torch.tensor([known])):
        assert not part.any()


def test_a_unit_matrix_and_its_norm():
    a = torch.stack([torch.zeros(2, 2), torch.tensor([[3.0, 0.0], [0.0, 4.0]])])
    found, size = unit(a)
    torch.testing.assert_close(size, torch.tensor([0.0, 5.0]))
    torch.testing.assert_close(found, a / 5)


def test_a_leap_along_a_direction_of_any_size_is_finite():
    x, d = orthonormal((3, 2, 4), torch.float32, 0), gaussian((3, 2, 4), torch.float32, 1)
    found = leap_along(x, d, torch.tensor([2.0, float("inf"), -float("inf")]))
    torch.testing.assert_close(found.matrices, 2 * d - d @ x.mT @ x)
    largest = torch.finfo(torch.float32).max ** 0.5
    torch.testing.assert_close(found.scale, torch.tensor([2.0, largest, -largest]))


def test_the_first_length_is_a_tenth_of_a_radian_for_each_row():
    """Also where there has been no direction so far; where there is none now, it stays zero."""
    d = torch.stack([torch.zeros(4, 9), *torch.full((3, 4, 9), 0.1)])  # of norm 0.6
    quotient, last, t = torch.full((4,), 7.0), torch.tensor([0.0, 0.0, 5.0, 5.0]), torch.tensor([3.0, 3.0, 1.0, 2.0])
    torch.testing.assert_close(step_length(quotient, d, last, t), torch.tensor([0.0, 1 / 3, 1 / 3, 7.0]))


def test_a_length_that_is_no_positive_number_is_the_last_one():
    quotient = torch.tensor([-1.0, 0.0, float("inf"), float("nan"), 0.5])
    found = step_length(quotient, torch.ones(5, 2, 3), torch.full((5,), 3.0), torch.full((5,), 2.0))
    assert found.tolist() == [3.0, 3.0, 3.0, 3.0, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_loops_that_leave_no_descent_give_the_gradient(dtype):
    """With S = G = e₁, Y = e₁ + k·e₂ and no H₀ the direction is k²e₁ − k·e₂, of cosine k with G."""
    least = torch.finfo(dtype).eps ** 0.5
    g = torch.tensor([[[1.0, 0.0]]], dtype=dtype)
    for k, descends in ((1.5 * least, True), (0.7 * least, False)):
        y = torch.tensor([[[1.0, k]]], dtype=dtype)
        d = _two_loops(g, [[g, y, torch.zeros(1, dtype=dtype)]], torch.ones(1, dtype=dtype))
        expected = torch.tensor([[[k * k, -k]]], dtype=dtype) if descends else g
        torch.testing.assert_close(d, expected, rtol=1e-3, atol=0)


@every_solver
def test_the_first_step_has_no_pair_and_the_second_has_one(base):
    """With S at right angles to the gradient T and Y = S + T both give the length ‖S‖²/(‖S‖² + ‖T‖²)."""
    shape, dtype = (2, 3, 5), torch.float64
    x, grad, s = orthonormal(shape, dtype, 0), gaussian(shape, dtype, 1), gaussian(shape, dtype, 2)
    gradient = stiefel.tangent(x, grad)
    s = s - (stiefel.inner(s, gradient) / stiefel.inner(gradient, gradient))[:, None, None] * gradient
    kinds = base.buffers(base.hyperparameters)
    state = {name: torch.zeros(shape if kind == "entries" else 2, dtype=dtype) for name, kind in kinds.items()}
    # both matrices have a history, which the first must not look at
    state |= {"last_point": x - s, "last_gradient": -s, "step_length": torch.full((2,), 3.0, dtype=dtype)}
    found, new = base.direction(x, grad, state, torch.tensor([1.0, 2.0], dtype=dtype), **base.hyperparameters)
    first, (of_s, of_t) = 0.1 * 3**0.5 / stiefel.norm(gradient[0]), (stiefel.norm(a[1]) ** 2 for a in (s, gradient))
    torch.testing.assert_close(new["step_length"], torch.stack([first, of_s / (of_s + of_t)]))
    leap = first * gradient[0]
    torch.testing.assert_close(found.whole()[0], 2 * leap - leap @ x[0].mT @ x[0])
