"""POGO commutes with X → O₁XO₂ exactly where its base does: a change of orthonormal bases changes nothing else."""

import pytest
import torch

import orthoptim
from orthoptim import stiefel
from tests.strategies import DOUBLE, eps, gaussian, orthonormal

STEPS = 50
norm = torch.linalg.matrix_norm


def deviation(base, lr, shape, dtype, seed):
    """‖O₁XO₂ − Y‖, largest entry, where Y has been trained on the same loss in other bases."""
    *batch, p, n = shape
    a = gaussian((p, p), dtype, seed) / p**0.5
    b = gaussian((n, n), dtype, seed + 1) / n**0.5
    target = gaussian((p, n), dtype, seed + 2) / n**0.5
    o1, o2 = orthonormal((*batch, p, p), dtype, seed + 3), orthonormal((*batch, n, n), dtype, seed + 4)

    def loss(x):
        return 0.5 * (norm(a @ x @ b - target) ** 2).sum()

    x = orthonormal(shape, dtype, seed + 5).requires_grad_()
    y = (o1 @ x.detach() @ o2).requires_grad_()
    optimizers = [orthoptim.POGO([param], lr=lr, base=base) for param in (x, y)]
    start = x.detach().clone()
    for _ in range(STEPS):
        (loss(x) + loss(o1.mH @ y @ o2.mH)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    x, y = x.detach(), y.detach()
    assert float((x - start).abs().max()) > 0.1  # it went somewhere
    return float((o1 @ x @ o2 - y).abs().max())


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (4, 4, 6)])
@pytest.mark.parametrize(
    ("base", "lr"),
    [(orthoptim.SGD(), 0.1), (orthoptim.SGD(momentum=0.9), 0.02), (orthoptim.VAdam(), 0.1)],
    ids=["sgd", "momentum", "vadam"],
)
def test_sgd_momentum_and_vadam_are_equivariant(base, lr, shape, dtype):
    for seed in range(3):
        assert deviation(base, lr, shape, dtype, seed) <= 50 * eps(dtype) / 2  # a rounding of u for each step


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (4, 4, 6)])
def test_adam_is_not_equivariant(shape, dtype):
    for seed in range(3):
        assert deviation(orthoptim.Adam(), 0.1, shape, dtype, seed) > 0.1


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("point", [orthonormal, gaussian])
def test_weight_decay_has_no_relative_gradient(point, dtype):
    x = point((20, 4, 6), dtype, 0)
    assert float(norm(stiefel.relative_gradient(x, x)).max()) <= 1e-14 * float(norm(x).max()) ** 3


@pytest.mark.parametrize("dtype", DOUBLE)
def test_weight_decay_does_nothing_to_sgd_pushes_momentum_and_shrinks_the_step_of_vadam(dtype):
    def end(base, decay, steps=10):
        x = orthonormal((5, 4, 6), dtype, 0).requires_grad_()
        optimizer = orthoptim.POGO([x], lr=0.1, base=base)
        for t in range(steps):
            x.grad = gaussian(x.shape, dtype, t) + decay * x.detach()
            optimizer.step()
        return x.detach()

    def difference(base, **options):
        return float((end(base, 1.0, **options) - end(base, 0.0, **options)).abs().max())

    assert difference(orthoptim.SGD()) <= 1e-14
    assert difference(orthoptim.SGD(momentum=0.9)) > 1e-2
    start = orthonormal((5, 4, 6), dtype, 0)
    length = [norm(end(orthoptim.VAdam(), decay, steps=1) - start) for decay in (10.0, 0.0)]
    assert (length[0] < 0.9 * length[1]).all()
