"""Landing, LandingPC and SLPG: what each of them alone promises."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim import stiefel
from orthoptim.base import Direction
from tests.conformance.methods import point, set_gradients
from tests.optim import oracles
from tests.problems import iterations, pca

DTYPES = st.sampled_from([torch.float64, torch.complex128])


# Landing


def off_manifold(shape, dtype, seed, distance):
    """A batch at the given distance (Frobenius) from the manifold."""
    x = point(*shape, dtype=dtype, seed=seed).detach()
    generator = torch.Generator().manual_seed(seed + 1)
    e = torch.randn(*shape[:-2], shape[-2], shape[-2], dtype=dtype, generator=generator)
    e = e + e.mH
    e = e * (distance / torch.linalg.matrix_norm(e))[..., None, None]
    values, vectors = torch.linalg.eigh(torch.eye(shape[-2], dtype=dtype) + e)
    return vectors @ (values.sqrt()[..., None] * vectors.mH) @ x


LANDING = {
    "lam": 1.0,
    "eps": 0.5,
    "momentum_of": "relative",
    "base": "sgd",
    "momentum": 0,
    "dampening": 0,
    "nesterov": False,
}


@given(
    dtype=DTYPES,
    p=st.integers(1, 6),
    extra=st.integers(0, 4),
    start=st.floats(0, 0.49),
    scale=st.floats(-4, 4),
    lr=st.floats(1e-3, 100) | st.floats(-100, -1e-3),
    seed=st.integers(0, 1000),
)
def test_landing_never_leaves_the_safe_region(dtype, p, extra, start, scale, lr, seed):
    x = off_manifold((4, p, p + extra), dtype, seed, start)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        g = 10**scale * torch.randn(x.shape, dtype=dtype, generator=generator)
        x = oo.Landing.update_whole(x, Direction(g), torch.tensor(lr, dtype=torch.float64), {}, None, LANDING).x
        assert stiefel.distance(x).max() <= 0.5 + 1e-12


@given(dtype=DTYPES, p=st.integers(1, 6), extra=st.integers(0, 4), seed=st.integers(0, 1000))
def test_the_landing_field_is_the_sum_of_two_terms_that_are_orthogonal_everywhere(dtype, p, extra, seed):
    generator = torch.Generator().manual_seed(seed)
    x, g = (torch.randn(2, p, p + extra, dtype=dtype, generator=generator) for _ in range(2))
    r, normal = stiefel.relative_gradient(x, g), stiefel.defect(x) @ x
    assert (stiefel.inner(r, normal).abs() <= 1e-13 * stiefel.norm(r) * stiefel.norm(normal) + 1e-15).all()
    left, right = oo.optim.landing.landing_field(x @ x.mH, x @ g.mH, stiefel.defect(x), 0.3, 0.5)
    torch.testing.assert_close(left @ g + right @ x, 0.5 * r + 0.3 * normal)


@given(
    dtype=DTYPES,
    p=st.integers(1, 6),
    extra=st.integers(0, 4),
    scale=st.floats(-4, 4),
    lr=st.floats(1e-3, 100),
    seed=st.integers(0, 1000),
)
def test_landing_along_averages_never_leaves_the_safe_region(dtype, p, extra, scale, lr, seed):
    """Whatever the average is, tangent or not."""
    x = point(4, p, p + extra, dtype=dtype, seed=seed).detach()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        average = Direction(10**scale * torch.randn(x.shape, dtype=dtype, generator=generator))
        x = oo.Landing.update_whole(
            x, average, torch.tensor(lr, dtype=torch.float64), {}, None, {**LANDING, "momentum": 0.9}
        ).x
        assert stiefel.distance(x).max() <= 0.5 + 1e-12


@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.parametrize("shape", [(10, 10), (4, 12)])
@pytest.mark.parametrize("size", [1e6, 1e9, 1e13])
def test_landing_stays_in_the_safe_region_where_gradients_are_almost_normal(size, shape, momentum):
    param = point(*shape)
    opt = oo.Landing([param], 1.0, base=oo.SGD(momentum=momentum))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        param.grad = size * param.detach() + torch.randn(shape, generator=generator)
        opt.step()
        assert oo.distance(param) <= 0.5 + 1e-5
    assert opt.drift()[0].rescued == 0


@pytest.mark.parametrize(("momentum_of", "arrives"), [("relative", True), ("gradient", False)])
def test_landing_with_momentum_arrives_where_gradients_have_a_large_normal_part(momentum_of, arrives):
    """The loss of PCA with 100‖XXᵀ − I‖² added: the normal part of a gradient is not normal at the next points."""
    problem = pca(5, 10, "paper", seed=0)
    x = torch.nn.Parameter(problem.start.clone())
    opt = oo.Landing([x], 0.02, base=oo.SGD(momentum=0.9), momentum_of=momentum_of)
    for _ in range(300):
        x.grad = problem.gradient(x.detach()) + 400 * stiefel.defect(x.detach()) @ x.detach()
        opt.step()
    assert (oo.distance(x) < 4e-3 and problem.gap(x.detach()) < 4e-3) == arrives


def test_landing_refuses_a_momentum_of_anything_else():
    with pytest.raises(ValueError, match="Invalid momentum_of: 'both'; choose one of relative, gradient"):
        oo.Landing([point(4, 6)], 0.1, momentum_of="both")


def test_landing_survives_huge_gradients():
    param = point(4, 6)
    opt = oo.Landing([param], 0.1)
    for exponent in (30, -30, 0):
        set_gradients([param], scale=10.0**exponent)
        opt.step()
    assert oo.distance(param) <= 0.5
    assert opt.drift()[0].clipped >= 1


def test_eps_of_landing_and_of_its_base_are_two_things():
    opt = oo.Landing([point(4, 6)], 0.1, base=oo.VAdam(eps=1e-3), eps=0.25)
    assert opt.param_groups[0]["eps"] == 0.25
    assert opt.param_groups[0]["base_eps"] == 1e-3


# LandingPC


@pytest.mark.parametrize(("factor", "converges"), [(1.0, True), (1.5, False)])
def test_landingpc_converges_on_pca_at_the_papers_lr_and_stalls_above(factor, converges):
    n = 100
    lr = factor * 10.5 * math.sqrt(n / 2000)
    steps = iterations(pca(75, n, "code", seed=0), lambda x: oo.LandingPC(x, lr, lam=0.01), 1500)
    assert (steps is not None) == converges


def test_landingpc_projects_what_is_too_far():
    param = point(2, 4, 6, dtype=torch.float64)
    opt = oo.LandingPC([param], 8.0, lam=0.01, tau=0.5)
    free = oo.LandingPC([torch.nn.Parameter(param.detach().clone())], 8.0, lam=0.01, tau=None)
    (other,) = free.param_groups[0]["params"]
    set_gradients([param])
    param.grad[1] = 0
    other.grad = param.grad.clone()
    opt.step()
    free.step()
    far, near = oo.distance(other)
    assert far > 0.5
    assert near < 1e-12
    torch.testing.assert_close(param[0].detach(), oracles.polar(other[0].detach()), rtol=0, atol=1e-12)
    assert opt.state[param]["clipped"].tolist() == [1, 0]
    assert torch.equal(param[1], other[1])


def test_landingpc_projects_what_overflows():
    """XXᴴ is not a number after a finite gradient of 1e22."""
    param = point(2, 4, 6)
    opt = oo.LandingPC([param], 0.1, base=oo.SGD())
    set_gradients([param])
    param.grad[1] *= 1e22
    opt.step()
    assert oo.distance(param)[1] < 1e-5
    assert opt.state[param]["clipped"].tolist() == [0, 1]
    assert opt.drift()[0].skipped == 0


# SLPG


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_direction_of_slpg_is_twice_r_for_one_row_and_r_for_square(dtype):
    for shape, factor in (((1, 7), 2), ((6, 6), 1)):
        x, g = point(*shape, dtype=dtype).detach(), torch.randn(*shape, dtype=dtype)
        if shape[0] == 1 and dtype.is_complex:
            # one complex row still has a phase: G − Re⟨G,X⟩X against G − ½(⟨X,G⟩ + …)X; equal up to i·X
            g = g - 1j * (g @ x.mH).imag * x
        torch.testing.assert_close(stiefel.tangent(x, g), factor * stiefel.relative_gradient(x, g), rtol=0, atol=1e-13)


def test_slpg_finishes_on_the_manifold_if_asked():
    for asked in (True, False):
        param = point(4, 6)
        opt = oo.SLPG([param], 0.05, project_at_end=asked)
        for t in range(3):
            set_gradients([param], t)
            opt.step()
        before = oo.distance(param)
        opt.finish()
        assert (oo.distance(param) < 1e-6) == asked
        assert before > 1e-6
