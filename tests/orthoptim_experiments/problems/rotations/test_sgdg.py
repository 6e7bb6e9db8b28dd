"""The published defects of SGDG, on the contender that reproduces them, and that our optimizers do not have them."""

import random

import pytest
import torch

import orthoptim as oo
from orthoptim_experiments.problems.rotations.sgdg import SGDG


def trained(make, steps=60, seed=0):
    """A rotation of 16×16 after some steps on a problem with noise, Python's global random state given."""
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.Parameter(oo.orthogonalize_(torch.empty(16, 16), init="random", generator=generator))
    target = torch.randn(16, 16, generator=generator)
    opt = make([x])
    random.seed(seed)
    for _ in range(steps):
        x.grad = target + torch.randn(16, 16, generator=generator)
        opt.step()
    return x.detach()


def test_momentum_has_no_effect():
    runs = [trained(lambda params, beta=beta: SGDG(params, 0.5, momentum=beta)) for beta in (0.9, 0.0)]
    assert torch.equal(runs[0], runs[1])


def test_our_momentum_has_an_effect():
    runs = [trained(lambda params, beta=beta: oo.StiefelMuon(params, 0.02, momentum=beta)) for beta in (0.9, 0.0)]
    assert not torch.equal(runs[0], runs[1])
    runs = [trained(lambda params, beta=beta: oo.POGO(params, 0.02, oo.SGD(momentum=beta))) for beta in (0.9, 0.0)]
    assert not torch.equal(runs[0], runs[1])


def test_a_run_depends_on_the_global_random_state():
    runs = [trained(lambda params: SGDG(params, 0.5), steps=200, seed=seed) for seed in (0, 1)]
    assert not torch.equal(runs[0], runs[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda params: oo.POGO(params, 0.5),
        lambda params: oo.StiefelMuon(params, 0.02),
        lambda params: oo.RGD(params, 0.02, retraction="cayley"),
    ],
    ids=["pogo", "stiefelmuon", "cayley"],
)
def test_our_runs_do_not(make):
    assert torch.equal(trained(make, seed=0), trained(make, seed=1))


def test_it_leaves_the_manifold_and_ours_do_not():
    away = oo.distance(trained(lambda params: SGDG(params, 1.5)))
    ours = oo.distance(trained(lambda params: oo.POGO(params, 0.5, landing="strict")))
    assert away > 1e-3
    assert ours < 1e-5
    assert away > 100 * ours


def test_one_step_is_that_of_the_formulas():
    """W = A − Aᵀ with A = XᵀM − ½XᵀMXᵀX, M = −G, by n×n matrices in double precision; two iterations."""
    random.seed(1)  # whose first draw is not the one in a hundred
    x = oo.orthogonalize_(torch.empty(4, 4, dtype=torch.float64), init="random")
    g = torch.randn(4, 4, dtype=torch.float64)
    param = torch.nn.Parameter(x.clone())
    param.grad = g
    SGDG([param], 1e-2).step()
    a = -x.T @ g + 0.5 * x.T @ g @ x.T @ x
    w = a - a.T
    alpha = min(1e-2, 1.0 / (float(w.abs().sum(0).max()) + 1e-8))
    y = x + alpha * x @ w
    for _ in range(2):
        y = x + alpha / 2 * (x + y) @ w
    torch.testing.assert_close(param.detach(), y, rtol=0, atol=1e-13)
    assert float((g * (param.detach() - x)).sum()) < 0
