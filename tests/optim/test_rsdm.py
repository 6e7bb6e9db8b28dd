"""RSDM: its draws, and what a step in a random subspace keeps."""

import pytest
import torch

import orthoptim as oo
from orthoptim import stiefel
from orthoptim.stiefel import draws
from tests.conformance.methods import point
from tests.problems import iterations, pca

# RSDM


def test_rsdm_changes_the_row_space_and_acting_on_p_would_not():
    x, g = point(3, 8, dtype=torch.float64).detach(), torch.randn(3, 8, dtype=torch.float64)
    param = torch.nn.Parameter(x.clone())
    opt = oo.RSDM([param], 0.5, r=6)
    param.grad = g
    opt.step()
    assert _row_space_distance(param.detach(), x) > 1e-2
    frame = stiefel.random(2, 3, dtype=torch.float64)
    k = stiefel.skew(frame @ g @ x.mH @ frame.mH)
    y = stiefel.row_qr((torch.eye(2, dtype=torch.float64) - 0.5 * k).mH).mH
    on_p = x + frame.mH @ (y - torch.eye(2, dtype=torch.float64)) @ frame @ x
    assert _row_space_distance(on_p, x) < 1e-13


def _row_space_distance(a, b):
    return float(torch.linalg.matrix_norm(a.mH @ a - b.mH @ b))


@pytest.mark.parametrize("count", [1000, pytest.param(3000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_rsdm_stays_on_the_manifold_over_many_steps_in_double_precision(dtype, count):
    param = point(4, 6, dtype=dtype)
    opt = oo.RSDM([param], 0.5, r=3)
    noise = torch.randn(count, 4, 6, dtype=dtype)
    for g in noise:
        param.grad = g
        opt.step()
    assert oo.distance(param) < 1e-12


@pytest.mark.parametrize("sampling", ["orthogonal", "permutation"])
def test_rsdm_descends(sampling):
    problem = pca(6, 8, "paper", seed=0)
    steps = iterations(problem, lambda x: oo.RSDM(x, 0.5, r=4, sampling=sampling), 2000, tolerance=1e-3)
    assert steps is not None


@pytest.mark.parametrize("r", [0, 7, -1])
def test_rsdm_refuses_a_subspace_larger_than_the_space(r):
    param = point(4, 6)
    before = param.detach().clone()
    with pytest.raises(ValueError, match=rf"Invalid r: {r}; it is a number of dimensions, from 1 to n = 6"):
        oo.RSDM([param], 0.1, r=r)
    assert torch.equal(param, before)


def test_rsdm_needs_r():
    with pytest.raises(ValueError, match="RSDM needs r"):
        oo.RSDM([point(4, 6)], 0.1)


def test_rsdm_draws_differ_between_steps_matrices_and_seeds_and_on_nothing_else():
    stream = draws.fingerprint(torch.randn(5, 3, 4, dtype=torch.float64))
    t = torch.ones(5)
    one = draws.uniform(stream, t, 0, 1000)
    assert torch.equal(one, draws.uniform(stream, t, 0, 1000))
    assert torch.equal(one[3:4], draws.uniform(stream[3:4], t[3:4], 0, 1000))
    for other in (draws.uniform(stream, t + 1, 0, 1000), draws.uniform(stream, t, 1, 1000), one.roll(1, 0)):
        assert abs(float(torch.corrcoef(torch.stack([one[0], other[0]]))[0, 1])) < 0.15
        assert not (one == other).any()


def test_rsdm_draws_are_uniform_and_frames_are_isotropic():
    stream = draws.fingerprint(torch.randn(400, 3, 4, dtype=torch.float64))
    u = draws.uniform(stream, torch.ones(400), 0, 100).flatten().sort().values
    grid = (torch.arange(u.numel(), dtype=torch.float64) + 0.5) / u.numel()
    assert float((u - grid).abs().max()) < 1.63 / u.numel() ** 0.5  # Kolmogorov–Smirnov at 1 %
    for dtype in (torch.float64, torch.complex128):
        frame = draws.subspace(stream, torch.ones(400), 0, 2, 5, dtype)
        assert stiefel.distance(frame).max() < 1e-13
        projector = (frame.mH @ frame).mean(0)
        assert float((projector - 0.4 * torch.eye(5)).abs().max()) < 0.06
    chosen = draws.columns(stream, torch.ones(400), 0, 2, 5)
    assert torch.bincount(chosen.flatten(), minlength=5).min() > 120
    assert (chosen[:, 0] != chosen[:, 1]).all()
