"""Whole runs of POGO are those of the reference, with every base and every landing."""

import numpy as np
import pytest

import orthoptim
from orthoptim import stiefel
from tests import reference
from tests.strategies import DOUBLE, gaussian, of_norm, orthonormal

STEPS = 10


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD", {}), ("SGD", {"momentum": 0.9, "nesterov": True}), ("VAdam", {}), ("Adam", {}), ("Muon", {})],
    ids=str,
)
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 7)])
def test_a_run_of_pogo_equals_the_reference(shape, name, options, landing, dtype):
    x = orthonormal(shape, dtype, 0).requires_grad_()
    lr = 0.2 if name == "VAdam" else 0.05
    optimizer = orthoptim.POGO([x], lr=lr, base=getattr(orthoptim, name)(**options), landing=landing)
    gradients = of_norm(gaussian((STEPS, *shape), dtype, 1), 1.0)

    def run(x0, *grads):
        return reference.pogo_run(x0, grads, lr, getattr(reference, name)(**options), landing)

    expected = np.moveaxis(reference.each(lambda *a: np.stack(run(*a)), x.detach(), *gradients), -3, 0)
    for grad, point in zip(gradients, expected, strict=True):
        x.grad = grad
        optimizer.step()
        assert np.abs(reference.double(x.detach()) - point).max() <= 1e-12
