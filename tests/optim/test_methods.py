"""The methods beside POGO: each against its oracle, and what is known of it."""

import math
import warnings
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim import stiefel
from orthoptim.base import Direction
from orthoptim.stiefel import draws
from tests.conformance.methods import point, set_gradients, steps
from tests.optim import oracles
from tests.problems import iterations, pca, procrustes

DTYPES = st.sampled_from([torch.float64, torch.complex128])

ORACLES = {
    "rgd": (oo.RGD, oracles.rgd, None, {}),
    "rgd-canonical": (oo.RGD, oracles.rgd, None, {"metric": "canonical"}),
    "rgd-polar": (oo.RGD, oracles.rgd, None, {"retraction": "polar"}),
    "rgd-cholesky": (oo.RGD, oracles.rgd, None, {"retraction": "cholesky"}),
    "landing": (oo.Landing, oracles.landing, None, {"lam": 0.7, "eps": 0.3}),
    "landing-momentum": (
        oo.Landing,
        oracles.landing_of_average,
        (oo.SGD(momentum=0.5), lambda: oracles.RelativeMomentum(0.5)),
        {},
    ),
    "landing-momentum-of-gradients": (
        oo.Landing,
        oracles.landing,
        (oo.SGD(momentum=0.5), lambda: oracles.Momentum(0.5)),
        {"momentum_of": "gradient"},
    ),
    "landing-vadam": (oo.Landing, oracles.landing, (oo.VAdam(eps=1e-3), lambda: oracles.VAdam(eps=1e-3)), {}),
    "landingpc": (oo.LandingPC, oracles.landingpc, (oo.VAdam(), oracles.VAdam), {}),
    "landingpc-decoupled": (
        oo.LandingPC,
        oracles.landingpc,
        (oo.VAdam(), oracles.VAdam),
        {"coupled": False, "lam": 0.5, "tau": 0.01},
    ),
    "slpg": (oo.SLPG, oracles.slpg, None, {}),
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_agrees_with_its_oracle_over_50_steps(name, dtype):
    cls, oracle, bases, options = ORACLES[name]
    params = [point(3, 4, 6, dtype=dtype), point(5, 5, dtype=dtype, seed=1), point(6, 4, dtype=dtype, seed=2)]
    mine, theirs = bases or (oo.SGD(), lambda: lambda x, g: g)
    opt = cls(params, 0.02, base=mine, **options)
    singles = [m.clone() for p in params for m in oo.View().to_matrices(p.detach())[0].reshape(-1, *_shape(p))]
    directions = [theirs() for _ in singles]
    for t in range(50):
        set_gradients(params, t)
        grads = [m.clone() for p in params for m in oo.View().to_matrices(p.grad)[0].reshape(-1, *_shape(p))]
        opt.step()
        singles = [
            oracle(x, direction(x, g), 0.02, **options)
            for x, g, direction in zip(singles, grads, directions, strict=True)
        ]
    result = [m for p in params for m in oo.View().to_matrices(p.detach())[0].reshape(-1, *_shape(p))]
    for one, two in zip(result, singles, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


def _shape(param):
    return sorted(param.shape[-2:])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("sampling", ["orthogonal", "permutation"])
def test_rsdm_agrees_with_its_oracle_over_50_steps(dtype, sampling):
    param = point(3, 4, 6, dtype=dtype)
    opt = oo.RSDM([param], 0.3, r=3, sampling=sampling, seed=5)
    singles = list(param.detach().clone())
    streams = draws.fingerprint(param.detach())
    for t in range(1, 51):
        set_gradients([param], t)
        step = torch.full((3,), float(t), dtype=torch.float64)
        if sampling == "orthogonal":
            frames = draws.subspace(streams, step, 5, 3, 6, dtype)
        else:
            frames = torch.eye(6, dtype=dtype)[draws.columns(streams, step, 5, 3, 6)]
        singles = [oracles.rsdm(x, g, 0.3, frame=f) for x, g, f in zip(singles, param.grad, frames, strict=True)]
        opt.step()
    for one, two in zip(param.detach(), singles, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_slpg_with_barzilai_borwein_steps_agrees_with_its_oracle(dtype):
    """Both step from the same points: the iteration is chaotic."""
    param = point(3, 4, 6, dtype=dtype)
    singles = [oracles.ShortBB() for _ in range(3)]
    opt = oo.SLPG([param], 1.0, barzilai_borwein=True)
    for t in range(50):
        if t % 5 == 0:  # before the optimum is reached, another function
            target = torch.randn(3, 4, 6, dtype=dtype)
        param.grad = param.detach() * torch.linspace(1, 9, 6, dtype=torch.float64) - target
        expected = [step(x, g) for x, g, step in zip(param.detach(), param.grad, singles, strict=True)]
        opt.step()
        for one, two in zip(param.detach(), expected, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["pca code", "pca paper", "procrustes"])
def test_slpg_with_barzilai_borwein_steps_converges_at_the_documented_setting(name, seed):
    problem = procrustes(50, seed) if name == "procrustes" else pca(75, 100, name.split()[1], seed)
    max_distance = []

    def make(x):
        opt = oo.SLPG(x, 1.0, barzilai_borwein=True)
        opt.register_step_post_hook(lambda *_: max_distance.append(float(oo.distance(x[0]))))
        return opt

    assert iterations(problem, make, 600) is not None
    assert max(max_distance) < 1e-2


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_rsdm_stays_on_the_manifold_over_3000_steps_in_double_precision(dtype):
    param = point(4, 6, dtype=dtype)
    opt = oo.RSDM([param], 0.5, r=3)
    noise = torch.randn(3000, 4, 6, dtype=dtype)
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


# RGD


def retracted(name, y):
    return stiefel.on_one_device(stiefel.RETRACTIONS[name](y)).x


@pytest.mark.parametrize("name", list(stiefel.RETRACTIONS))
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_retractions_are_retractions(name, dtype):
    """On the manifold, through X, and with derivative D there: the error against X + tD is of second order."""
    x = point(4, 7, dtype=dtype).detach()
    d = stiefel.tangent(x, torch.randn(4, 7, dtype=dtype))
    retract = partial(retracted, name)
    torch.testing.assert_close(retract(x), x, rtol=0, atol=1e-14)
    times = torch.tensor([1e-2, 1e-3], dtype=torch.float64)
    errors = [float(torch.linalg.matrix_norm(retract(x + t * d) - (x + t * d))) for t in times]
    assert abs(math.log10(errors[0] / errors[1]) - 2) < 0.05
    assert stiefel.distance(retract(x + d)) < 1e-13


@given(
    dtype=st.sampled_from([torch.float32, torch.float64, torch.complex64]),
    name=st.sampled_from(list(stiefel.RETRACTIONS)),
    p=st.integers(1, 8),
    extra=st.integers(0, 8),
    seed=st.integers(0, 1000),
)
def test_retractions_are_nan_where_there_is_nothing_to_retract_to_and_neighbours_do_not_notice(
    dtype, name, p, extra, seed
):
    generator = torch.Generator().manual_seed(seed)
    retract = partial(retracted, name)
    x = point(7, p, p + extra, dtype=dtype, seed=seed).detach()
    good = x + 0.5 * torch.randn(x.shape, dtype=dtype, generator=generator)
    bad = good.clone()
    bad[1, -1, 0] = torch.nan
    bad[2, 0, -1] = torch.inf
    bad[3] = 0
    bad[4, -1] = bad[4, :-1].sum(0)  # nothing, where there is one row
    bad[5] *= 2.0**100  # changes no retraction
    new, expected = retract(bad), retract(good)
    assert torch.isnan(new[1:5]).all()
    others = [0, 5, 6]
    assert torch.equal(new[others].nan_to_num(), expected[others].nan_to_num())
    usable = torch.isfinite(expected).all(-1).all(-1)
    assert stiefel.distance(expected[usable]).max() < 200 * p * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["polar", "cholesky"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_whitening_twice_is_the_retraction(name, dtype):
    y = torch.randn(3, 4, 7, dtype=dtype)
    new = y
    for _ in range(2):
        new = stiefel.whitening(new @ new.mH, name) @ new
    torch.testing.assert_close(new, retracted(name, y), rtol=0, atol=1e-11)
    for wrong in (torch.nan, 0.0):
        gram = y @ y.mH
        gram[1] *= wrong
        assert torch.isnan(stiefel.whitening(gram, name)).all(-1).all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("name", list(stiefel.RETRACTIONS))
@pytest.mark.parametrize("poison", [1e25, torch.inf, torch.nan])
def test_rgd_freezes_a_matrix_whose_step_overflows_and_its_neighbours_step(name, poison):
    params = [point(3, 4, 6), point(3, 4, 6)]
    for param, size in zip(params, (1e-20, poison), strict=True):
        opt = oo.RGD([param], 1e20, retraction=name)
        param.grad = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
        param.grad *= torch.tensor([1e-20, size, 1e-20])[:, None, None]
        opt.step()
    assert opt.drift()[0].skipped == 1
    assert torch.equal(params[1][1], point(3, 4, 6)[1])
    assert torch.equal(params[0][::2], params[1][::2])


@pytest.mark.parametrize("name", list(stiefel.RETRACTIONS))
def test_rgd_freezes_a_matrix_that_holds_nan(name):
    param = point(3, 4, 6)
    other = torch.nn.Parameter(param.detach().clone())
    opts = [oo.RGD([x], 0.1, retraction=name) for x in (param, other)]
    with torch.no_grad():
        param[1, 2, 3] = torch.nan
    set_gradients([other])
    param.grad = other.grad.clone()
    for opt in opts:
        opt.step()
    assert opts[0].drift()[0].skipped == 1
    assert torch.equal(param[::2], other[::2])


def test_without_the_phases_qr_is_no_retraction():
    x = point(4, 7, dtype=torch.float64).detach()
    q, _ = torch.linalg.qr(x.mH)
    assert float((q.mH - x).abs().max()) > 0.1


@pytest.mark.parametrize("options", [{"metric": "flat"}, {"retraction": "exp"}])
def test_rgd_bad_options(options):
    with pytest.raises(ValueError, match=r"Invalid (metric|retraction)"):
        oo.RGD([point(4, 6)], 0.1, **options)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (oo.Landing, {"lam": 0.0}),
        (oo.Landing, {"eps": 1.5}),
        (oo.LandingPC, {"tau": 0.0}),
        (oo.LandingPC, {"tau": -1.0}),
        (oo.LandingPC, {"lam": -1.0}),
        (oo.RSDM, {"sampling": "sobol", "r": 2}),
    ],
)
def test_bad_options(cls, options):
    param = point(4, 6)
    before = param.detach().clone()
    with pytest.raises(ValueError, match=r"Invalid (lam|eps|tau|sampling)"):
        cls([param], 0.1, **options)
    assert torch.equal(param, before)


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
