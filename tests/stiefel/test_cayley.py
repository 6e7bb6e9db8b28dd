"""The Cayley transform against its definition with n×n matrices."""

import pytest
import torch

import orthoptim as oo
from orthoptim import stiefel
from tests.conformance.methods import point


def definition(x, d, length):
    """X(I − ½W)(I + ½W)⁻¹."""
    inner = d - 0.5 * (d @ x.mH) @ x
    w = length * (x.mH @ inner - inner.mH @ x)
    identity = torch.eye(x.shape[-1], dtype=x.dtype)
    return x @ (identity - 0.5 * w) @ torch.linalg.inv(identity + 0.5 * w)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (1, 4)])
@pytest.mark.parametrize("size", [1e-3, 0.1, 10.0])
def test_cayley_is_its_definition(dtype, shape, size):
    x = point(2, *shape, dtype=dtype).detach()
    g = torch.randn(2, *shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    d, length = stiefel.tangent(x, g), torch.tensor(size, dtype=torch.float64)
    expected = definition(x, d, length)
    assert stiefel.distance(expected).max() < 1e-12
    torch.testing.assert_close(stiefel.CAYLEY["cayley"](x, d, length), expected, rtol=0, atol=1e-11)
    if size <= 0.1:  # of order ‖W‖⁴ after two iterations
        iterated = stiefel.CAYLEY["cayley-iterative"](x, d, length)
        limit = (size * float(torch.linalg.matrix_norm(d, 2).max())) ** 4
        torch.testing.assert_close(iterated, expected, rtol=0, atol=limit + 1e-12)


@pytest.mark.parametrize("retraction", ["cayley", "cayley-iterative"])
def test_rgd_stays_on_the_manifold_at_any_learning_rate(retraction):
    param = point(6, 6)
    opt = oo.RGD([param], 10.0, retraction=retraction)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        param.grad = torch.randn(6, 6, generator=generator)
        opt.step()
    assert oo.distance(param) < 0.05
    assert torch.linalg.det(param.detach()).sign() == torch.linalg.det(point(6, 6).detach()).sign()
