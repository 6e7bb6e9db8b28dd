"""Matrices that somebody wrote far off the manifold: every method brings them back, or names them."""

import warnings

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import point, set_gradients, steps

# Matrices that somebody wrote far off the manifold

RETURN = {
    "rgd": lambda x: oo.RGD(x, 0.05),
    "rgd-polar": lambda x: oo.RGD(x, 0.05, retraction="polar"),
    "rgd-cholesky": lambda x: oo.RGD(x, 0.05, retraction="cholesky"),
    "rgd-cayley": lambda x: oo.RGD(x, 0.05, retraction="cayley"),
    "rgd-cayley-iterative": lambda x: oo.RGD(x, 0.05, retraction="cayley-iterative"),
    "rsdm": lambda x: oo.RSDM(x, 0.1, r=2),
    "rsdm-permutation": lambda x: oo.RSDM(x, 0.1, r=2, sampling="permutation"),
    "landing": lambda x: oo.Landing(x, 0.1),
    "landing-momentum": lambda x: oo.Landing(x, 0.05, base=oo.SGD(momentum=0.5)),
    "landingpc": lambda x: oo.LandingPC(x, 0.005),
    "slpg": lambda x: oo.SLPG(x, 0.05),
    "stiefelmuon": lambda x: oo.StiefelMuon(x, 0.005),
    "slpg-bb": lambda x: oo.SLPG(x, 1.0, barzilai_borwein=True),
}


def written(name, shape, changes, steps):
    """A batch whose matrices, but the first and the last, are changed after construction; some steps later."""
    param = point(len(changes) + 2, *shape)
    opt = RETURN[name]([param])
    target = torch.randn(param.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for i, change in enumerate(changes, 1):
            param[i] = change(param[i])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rescue warns
        for _ in range(steps):
            param.grad = 0.03 * (param.detach() - target)  # infeasible methods are as far away as gradients are long
            opt.step()
            assert torch.isfinite(param).all()
    return param, opt


@pytest.mark.parametrize("shape", [(5, 5), (4, 12)])
@pytest.mark.parametrize("name", RETURN)
def test_scaled_matrices_come_back(name, shape):
    scalings = [lambda x, factor=factor: factor * x for factor in (3, 1e3, 0.01)]
    param, opt = written(name, shape, scalings, 100)
    assert oo.distance(param).max() < 1e-3
    counts = opt.state[param]["rescued"].tolist()
    assert min(counts[1:-1]) > 0
    assert counts[0] == counts[-1] == 0
    assert opt.drift()[0].skipped == 0


@pytest.mark.parametrize("factor", [1e6, 1e14])
@pytest.mark.parametrize("name", RETURN)
def test_an_absurdly_scaled_matrix_comes_back_or_stays_as_it_is_and_is_named(name, factor):
    """The leaps of some methods overflow from there: it is as far away as they can bring a matrix back from."""
    param = point(4, 12)
    opt = RETURN[name]([("absurd", param)])
    with torch.no_grad():
        param *= factor
    written = param.detach().clone()
    with pytest.warns(UserWarning, match="'absurd' .* was far from orthonormal") as caught:
        steps(opt, [param], 30)
    assert len(caught) == 1
    if torch.equal(param, written):
        assert factor > 1e6
        assert opt.drift()[0].skipped == 30
    else:
        assert oo.distance(param) < 0.5


@pytest.mark.parametrize("change", [torch.zeros_like, lambda x: x[:1].expand_as(x)], ids=["zero", "equal rows"])
@pytest.mark.parametrize("name", RETURN)
def test_a_matrix_without_full_rank_stays_finite_and_is_counted_or_leaves_by_its_gradient(name, change):
    param, opt = written(name, (4, 6), [change], 20)
    state, distance = opt.state[param], oo.distance(param)
    assert max(distance[0], distance[2]) < 0.2
    skipped = 20 - int(state["num_updates"][1])
    if name.startswith("rsdm") and change is not torch.zeros_like:
        assert distance[1] > 1  # as documented: its size is right, and nobody looks at more
    else:
        assert distance[1] < 1e-3 or skipped + int(state["rescued"][1]) > 0


@pytest.mark.parametrize("change", [lambda x: 3 * x, torch.zeros_like], ids=["scaled", "zero"])
@pytest.mark.parametrize("name", RETURN)
def test_a_matrix_that_was_written_far_away_is_named_once(name, change):
    params = [("left", point(3, 4, 6)), ("right", point(3, 4, 6, seed=1))]
    opt = RETURN[name](params)
    with torch.no_grad():
        params[1][1][2] = change(params[1][1][2])
    with pytest.warns(UserWarning, match=r"'right' \(3×4×6\) was far from orthonormal \(1 of 3 matrices\)") as caught:
        steps(opt, [param for _, param in params], 3)
    assert len(caught) == 1
    assert opt.drift()[0].skipped == (3 if change is torch.zeros_like else 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(100, 1, 2), (100, 2, 2), (20, 3, 3), (64, 64)])
@pytest.mark.parametrize("name", [*RETURN, "landing-narrow", "landingpc-narrow"])
def test_rounding_to_half_precision_is_not_taken_for_a_matrix_that_was_written(name, shape, dtype, recwarn):
    narrow = {
        "landing-narrow": lambda x: oo.Landing(x, 0.1, eps=1e-3),
        "landingpc-narrow": lambda x: oo.LandingPC(x, 0.005, tau=1e-3),
    }
    param = torch.nn.Parameter(point(*shape).detach().to(dtype))
    opt = (RETURN | narrow)[name]([param])
    set_gradients([param], scale=0.1)
    opt.step()
    assert not recwarn
    assert opt.drift()[0].rescued == opt.drift()[0].skipped == 0


def test_without_a_projection_landingpc_does_not_bring_a_matrix_back_but_stays_finite():
    param = point(3, 4, 6)
    opt = oo.LandingPC([param], 0.05, tau=None)
    with torch.no_grad():
        param[1] *= 1e3
    for t in range(20):
        set_gradients([param], t)
        opt.step()
        assert torch.isfinite(param).all()
    assert opt.drift()[0].skipped > 0
    assert oo.distance(param)[::2].max() < 0.1
