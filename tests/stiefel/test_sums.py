"""Sums over columns, and the direction whose factor comes with the first of them."""

import pytest
import torch

from orthoptim import stiefel
from orthoptim.stiefel import Direction
from tests.pieces import in_pieces
from tests.strategies import gaussian


def squares(x, direction):
    """‖X‖² and ‖G‖², in two sums."""
    (first,) = yield [stiefel.square_norm(x)]
    (second,) = yield [stiefel.square_norm(direction.whole())]
    return first, second


def test_on_one_device_a_partial_sum_is_the_sum():
    x, g = gaussian((3, 2, 7), torch.float64, 0), gaussian((3, 2, 7), torch.float64, 1)
    scale = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    whole = stiefel.on_one_device(squares(x, Direction(g, scale)))
    for piece in in_pieces(squares, x, g, scale):
        torch.testing.assert_close(piece, whole)
    torch.testing.assert_close(whole[1], scale**2 * stiefel.square_norm(g))


def test_a_function_may_yield_another_and_is_sent_what_it_returns():
    def of_both(x, direction):
        first, second = yield squares(x, direction)
        (third,) = yield [x.sum((-2, -1))]
        return first + second, third

    x, g = gaussian((3, 2, 7), torch.float64, 0), gaussian((3, 2, 7), torch.float64, 1)
    total, third = stiefel.on_one_device(of_both(x, Direction(g)))
    torch.testing.assert_close(total, stiefel.square_norm(x) + stiefel.square_norm(g))
    for piece in in_pieces(of_both, x, g):
        torch.testing.assert_close(piece, (total, third))


def test_a_function_that_needs_no_sum_returns_at_once():
    def constant():
        return 3
        yield

    assert stiefel.on_one_device(constant()) == 3


def test_the_largest_entry_of_no_columns_is_zero():
    assert torch.equal(stiefel.largest(torch.ones(2, 3, 0, dtype=torch.complex64)), torch.zeros(2))
    assert torch.equal(stiefel.largest(torch.tensor([[[1.0, -3.0]]])), torch.tensor([3.0]))


def test_the_factor_of_a_direction_is_not_known_before_it_is_set():
    direction = Direction(torch.ones(2, 1, 3), known=False)
    for early in (lambda: direction.scale, direction.whole, lambda: direction.times(torch.tensor(1.0))):
        with pytest.raises(RuntimeError, match="known from the first sums over columns on"):
            early()
    direction.set_scale(torch.tensor([2.0, 3.0]))
    assert torch.equal(direction.whole()[:, 0, 0], torch.tensor([2.0, 3.0]))
    assert torch.equal(direction.times(torch.tensor(2.0)), torch.tensor([4.0, 6.0])[:, None, None])
    assert torch.equal(direction.times(torch.tensor([1.0, 2.0])), torch.tensor([2.0, 6.0])[:, None, None])


def test_a_direction_without_a_factor_is_its_matrices():
    direction = Direction(torch.ones(2, 1, 3))
    assert direction.whole() is direction.matrices
    assert direction.times(torch.tensor(2.0)).shape == ()
    assert direction.times(torch.tensor([2.0, 3.0])).shape == (2, 1, 1)
