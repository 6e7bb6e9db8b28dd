"""Products that are known to be Hermitian or skew, of which half is computed, against the whole products."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from orthoptim.stiefel.batches import PANEL, hermitian, symmetric
from tests.strategies import gaussian


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("p", [6, 2 * PANEL + 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_half_of_a_hermitian_or_skew_product_is_the_product(p, sign, dtype):
    """The last panel is narrower than the others."""
    a = gaussian((2, p, p), dtype, p) / p**0.5
    one = a + sign * a.mH
    square = one @ one
    product = hermitian(square, one, sign=sign)
    torch.testing.assert_close(product, square @ one.mH, rtol=0, atol=1e-10)
    assert sign > 0 or torch.equal(product, -product.mH)


def work(function, p):
    """The part of a whole product's multiply–adds that a function of a matrix p×p takes."""
    with FlopCounterMode(display=False) as counter:
        function(torch.zeros(1, p, p))
    return counter.get_total_flops() / (2 * p**3)


def test_panels_save_nearly_half_of_large_products():
    assert [work(lambda a: hermitian(a, a), panels * PANEL) for panels in (1, 2, 4)] == [1, 3 / 4, 5 / 8]
    assert work(symmetric, 6 * PANEL) == 7 / 12


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_a_large_symmetric_product_is_the_product(dtype):
    x = gaussian((2, 4 * PANEL + 1, 3), dtype, 0)
    product = symmetric(x)
    torch.testing.assert_close(product, x @ x.mH, rtol=1e-5, atol=1e-4)
    assert torch.equal(product[:, PANEL:, :PANEL], product[:, :PANEL, PANEL:].mH)
