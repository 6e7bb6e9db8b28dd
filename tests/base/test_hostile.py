"""No base optimizer turns finite gradients of any size into a step that leaves the manifold."""

import pytest
import torch

import orthoptim
from orthoptim import stiefel
from tests.strategies import eps, gaussian, of_norm, orthonormal

STEPS, MATRICES = 250, 16
BASES = {
    "sgd": orthoptim.SGD(),
    "momentum": orthoptim.SGD(momentum=0.9),
    "vadam": orthoptim.VAdam(),
    "adam": orthoptim.Adam(),
    "muon": orthoptim.Muon(),
    "cg": orthoptim.CG(),
    "lbfgs": orthoptim.LBFGS(history_size=3),
}


CASES = [
    *(("safe", 0.5, dtype) for dtype in (torch.float32, torch.complex64)),
    ("strict", 1e-5, torch.float32),
    *(pytest.param("safe", 0.5, dtype, marks=pytest.mark.soak) for dtype in (torch.float64, torch.complex128)),
    pytest.param("strict", 1e-5, torch.complex64, marks=pytest.mark.soak),
]


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize(("landing", "bound", "dtype"), CASES)
def test_four_thousand_hostile_gradients_never_lead_far_away(landing, bound, dtype, base):
    x = orthonormal((MATRICES, 3, 7), dtype, 0).requires_grad_()
    optimizer = orthoptim.POGO([x], lr=0.5, base=base, landing=landing)
    sizes = 10 ** (60 * torch.rand(STEPS, MATRICES, dtype=torch.float64) - 30)
    points = []
    for grad in of_norm(gaussian((STEPS, *x.shape), dtype, 1), sizes):
        x.grad = grad
        optimizer.step()
        points.append(x.detach().clone())
    points = torch.stack(points).to(torch.complex128)
    assert torch.isfinite(points.abs()).all()
    assert float(torch.linalg.eigvalsh(stiefel.defect(points)).abs().max()) <= bound + 10 * eps(dtype)
    # every gradient was finite, so every step was taken, and led somewhere
    assert optimizer.drift()[0].skipped == 0
    assert float((points[-1] - points[0]).abs().max()) > 0.1
