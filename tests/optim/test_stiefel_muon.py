"""StiefelMuon against slow double-precision oracles: its step, the matrix sign, its promises, the best direction."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim import stiefel
from orthoptim.stiefel.msign import FIVE_STEPS, MUON, POLAR_EXPRESS, gain, msign, msign_skew, quintics
from tests.conformance.methods import point, set_gradients
from tests.optim.oracles import best_tangent_direction, exact_msign, skew, sym, taken


def with_spectrum(p, n, values, dtype=torch.float64, seed=0):
    u = point(p, p, dtype=dtype, seed=seed).detach()
    v = point(p, n, dtype=dtype, seed=seed + 1).detach()
    return (u * values.to(dtype)) @ v


# msign


def remez(low, high):
    """The odd quintic nearest to 1 on an interval: exchange of its four extremal points."""
    inner = ((3 * low + high) / 4, (low + 3 * high) / 4)
    for _ in range(100):
        x = torch.tensor([low, *inner, high], dtype=torch.float64)
        system = torch.stack([x, x**3, x**5, torch.tensor([1.0, -1, 1, -1], dtype=torch.float64)], 1)
        a, b, c, _ = torch.linalg.solve(system, torch.ones(4, dtype=torch.float64)).tolist()
        root = math.sqrt(9 * b * b - 20 * a * c)
        inner = tuple(math.sqrt((-3 * b + sign * root) / (10 * c)) for sign in (-1, 1))
    return a, b, c


@pytest.mark.parametrize(
    ("table", "low", "error"), [(POLAR_EXPRESS[:-1], 7e-4, 1e-6), (FIVE_STEPS, 2.5e-3, 0.0115)], ids=["six", "five"]
)
def test_polar_express_is_the_greedy_composition_of_best_quintics(table, low, error):
    """From singular values in [low, 1]; none is fitted to less than 0.024 of the interval, where quintics are flat."""
    high = 1.0
    for coefficients in table:
        a, b, c = remez(max(low, 0.02407327424182761 * high), high)
        ends = [a * x + b * x**3 + c * x**5 for x in (low, high)]
        factor = 2 / sum(ends)
        assert coefficients == pytest.approx((a * factor, b * factor, c * factor), rel=1e-9)
        low, high = ends[0] * factor, 2 - ends[0] * factor
    assert low > 1 - error


def test_the_last_quintic_of_polar_express_is_its_limit():
    assert POLAR_EXPRESS[-1] == (15 / 8, -10 / 8, 3 / 8)


@pytest.mark.parametrize("condition", [1.0, 10.0, 1e3])
@pytest.mark.parametrize("shape", [(8, 8), (64, 64), (64, 80), (32, 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_msign_is_within_a_hundredth_of_the_singular_value_decomposition(shape, condition, dtype):
    p = shape[0]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    for values in (
        torch.logspace(0, -math.log10(condition), p, dtype=torch.float64),
        torch.where(torch.arange(p) < p // 2, 1.0, 1 / condition).double(),
    ):
        t = with_spectrum(*shape, values, wide)
        error = torch.linalg.matrix_norm(msign(t.to(dtype)).to(wide) - exact_msign(t), 2)
        assert error <= 1e-2


def test_msign_of_zero_is_zero_and_the_size_does_not_matter():
    t = torch.stack([torch.zeros(4, 6), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))])
    assert not msign(t)[0].any()
    for size in (2.0**-100, 2.0**100):  # no other factor leaves the rounding of T as it is
        assert torch.equal(msign(size * t), msign(t))


@given(
    steps=st.integers(1, 8),
    coefficients=st.one_of(
        st.just("polar-express"), st.just(MUON), st.tuples(*[st.floats(-4, 4, allow_nan=False)] * 3)
    ),
)
def test_gain_bounds_what_the_quintics_give(steps, coefficients):
    table = quintics(coefficients, steps)
    x = torch.linspace(0, 1, 2001, dtype=torch.float64)
    for a, b, c in table:
        x = a * x + b * x**3 + c * x**5
    bound = gain(table)
    assert not (math.isfinite(bound) and x.abs().max() > bound * (1 + 1e-9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("p", [4, 10])
def test_rounding_does_not_exceed_the_gain(dtype, p):
    """It made singular values 4e-4 too large, and with them the distance of steps that are clipped, 0.5002 for ½."""
    k = torch.randn(6000, p, p, dtype=dtype, generator=torch.Generator().manual_seed(p))
    table = quintics("polar-express", 6)
    exact = torch.promote_types(dtype, torch.float64)
    for d in (msign_skew(skew(k), table, reduced=False), msign(k[..., : p // 2, :], table)):
        assert torch.linalg.matrix_norm(d.to(exact), 2).max() <= gain(table) * (1 + 4e-6)


@pytest.mark.parametrize("kind", ["random", "rank two", "clustered"])
@pytest.mark.parametrize("p", [256, 600])
def test_bfloat16_products_do_not_diverge(p, kind):
    """Quintics are steep beyond the interval they are made for: without a cushion rounding makes them diverge."""
    generator = torch.Generator().manual_seed(p)
    k = torch.randn(1, p, p, generator=generator)
    if kind == "rank two":
        k = k[..., :1] @ k[..., :1, :]
    if kind == "clustered":
        k = point(p, p).detach()[None]
    k = skew(k)
    d = msign_skew(k, POLAR_EXPRESS[:6], reduced=True)
    assert torch.equal(d, -d.mH)
    values = torch.linalg.svdvals(d[0].double())
    assert values.max() <= 1.03
    if kind == "random":
        assert torch.linalg.matrix_norm(d[0].double() - exact_msign(k[0]), 2) < 0.15


@pytest.mark.parametrize(("condition", "table"), [(100, FIVE_STEPS), (1000, POLAR_EXPRESS[:6])], ids=["five", "six"])
def test_bfloat16_products_find_the_sign_of_well_conditioned_matrices(condition, table):
    """Five steps within a tenth to condition numbers of 100, six within 0.35 to 1000; and skew, 1.03 at most."""
    p = 256
    q = point(p, p, dtype=torch.float64, seed=0).detach()
    pairs = torch.logspace(0, -math.log10(condition), p // 2, dtype=torch.float64)
    rotated = torch.stack([q[1::2] * pairs[:, None], -q[::2] * pairs[:, None]], 1).flatten(0, 1)
    k = (q.mT @ rotated)[None]
    d = msign_skew(k.float(), table, reduced=True).double()
    assert torch.linalg.matrix_norm(d - exact_msign(k), 2) < (0.1 if condition == 100 else 0.35)
    assert torch.linalg.matrix_norm(d, 2) <= 1.03


# The step


def muon_step(x, g, lr):
    """As it is written: exact msign, one tangent projection before and one after, leap, land."""
    t = g - sym(g @ x.mH) @ x
    d = exact_msign(t)
    m = x - lr * (d - sym(d @ x.mH) @ x)
    return 1.5 * m - 0.5 * (m @ m.mH) @ m


@pytest.mark.parametrize("shape", [(6, 6), (4, 6), (3, 12)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("nesterov", [True, False])
def test_the_step_is_that_of_the_oracle(shape, dtype, nesterov):
    param = point(*shape, dtype=dtype)
    opt = oo.StiefelMuon([param], 0.02, momentum=0.9, nesterov=nesterov, ns_steps=12)
    x, buffer = param.detach().clone(), torch.zeros(shape, dtype=dtype)
    for t in range(1, 11):  # the gradient of t = 0 is made from the numbers that X is made from
        set_gradients([param], t)
        buffer = 0.9 * buffer + 0.1 * param.grad  # torch.optim.Muon's
        expected = 0.1 * param.grad + 0.9 * buffer if nesterov else buffer
        x = muon_step(x, expected, 0.02)
        opt.step()
    torch.testing.assert_close(param.detach(), x, rtol=0, atol=1e-6)


def test_momentum_is_that_of_torch():
    """Up to a factor, which msign does not see."""
    mine, theirs = torch.nn.Parameter(torch.eye(4)), torch.nn.Parameter(torch.eye(4))
    opt = oo.StiefelMuon([mine], 0.0)
    other = torch.optim.Muon([theirs], lr=0.0, weight_decay=0.0)
    for t in range(5):
        set_gradients([mine], t)
        theirs.grad = mine.grad.clone()
        opt.step()
        other.step()
    ours, reference = opt.state[mine]["momentum_buffer"], other.state[theirs]["momentum_buffer"]
    torch.testing.assert_close(ours * 0.05, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 5), (4, 9)])
@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 1e10, 1e30])
def test_the_size_of_gradients_does_not_matter(shape, size):
    params = [point(*shape), point(*shape)]
    opts = [oo.StiefelMuon([param], 0.1) for param in params]
    for t in range(10):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(t))
        for param, opt, factor in zip(params, opts, (1.0, size), strict=True):
            param.grad = factor * gradient
            opt.step()
    torch.testing.assert_close(params[1], params[0], rtol=0, atol=1e-4)
    assert opts[1].drift()[0].skipped == 0


@given(
    shape=st.sampled_from([(1, 1), (1, 4), (3, 3), (4, 5), (6, 24)]),
    lr=st.sampled_from([1e-3, 0.1, 0.5, 0.86, 1.0, 3.0, 1e6]),
    landing=st.sampled_from(["safe", "strict"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.complex64]),
    seed=st.integers(0, 10**6),
)
def test_the_promise_of_safe_and_strict_for_any_learning_rate_and_gradient(shape, lr, landing, dtype, seed):
    param = point(*shape, dtype=dtype, seed=seed)
    opt = oo.StiefelMuon([param], lr, landing=landing)
    generator = torch.Generator().manual_seed(seed)
    bound = 0.5 if landing == "safe" else 1.5e-6
    bound += 100 * torch.finfo(dtype).eps
    for _ in range(6):
        exponent = 30 * (2 * float(torch.rand((), generator=generator)) - 1)
        param.grad = torch.randn(param.shape, dtype=dtype, generator=generator) * 10**exponent
        opt.step()
        assert torch.linalg.matrix_norm(stiefel.defect(param.detach()), 2) <= bound
    assert opt.drift()[0].rescued == 0
    most = (1.0 if landing == "safe" else 0.5) / (1.0 if shape[0] == shape[1] else (4 / 3) ** 0.5)
    assert opt.drift()[0].clipped == (6 if abs(lr) > most else 0)


@pytest.mark.parametrize("shape", [(5, 5), (4, 6)])
def test_the_promise_of_safe_for_a_cubic_whose_largest_value_is_inside_its_interval(shape):
    """2.5x − 2x³ is ½ at 1 and 1.08 at 0.65: leaps were taken to be half as long as they are."""
    param = point(*shape, dtype=torch.float64)
    opt = oo.StiefelMuon([param], 1.0, ns_coefficients=(2.5, -2.0, 0.0), ns_steps=1)
    for t in range(20):
        set_gradients([param], t)
        opt.step()
        assert torch.linalg.matrix_norm(stiefel.defect(param.detach()), 2) <= 0.5 + 1e-12
    assert opt.drift()[0].rescued == 0


@pytest.mark.parametrize(("shape", "widest"), [((8, 8), 1.0), ((6, 9), 4 / 3)])
@pytest.mark.parametrize("lr", [0.1, 0.5, 0.8])
def test_one_step_from_the_manifold_is_within_the_bound(shape, widest, lr):
    """‖XXᴴ − I‖₂ ≤ ¾(η‖R‖₂)⁴, where ‖R‖₂² ≤ 4/3, or 1 if X is square."""
    for seed in range(20):
        param = point(*shape, dtype=torch.float64, seed=seed)
        set_gradients([param], seed)
        oo.StiefelMuon([param], lr).step()
        distance = torch.linalg.matrix_norm(stiefel.defect(param.detach()), 2)
        assert distance <= 0.75 * widest**2 * lr**4 + 1e-12


def test_the_tangent_part_of_a_sign_is_no_longer_than_promised():
    worst = 0.0
    for seed in range(200):
        x = point(4, 6, dtype=torch.float64, seed=seed).detach()
        g = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        g = g @ torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
        d = exact_msign(g - sym(g @ x.mH) @ x)
        worst = max(worst, float(torch.linalg.matrix_norm(d - sym(d @ x.mH) @ x, 2)) ** 2)
    assert 1.2 < worst <= 4 / 3 + 1e-9


# The best direction


@pytest.mark.parametrize("p", [2, 5, 8])
def test_square_steps_are_steepest_descent_in_the_spectral_norm(p):
    x = point(p, p, dtype=torch.float64, seed=p).detach()
    g = torch.randn(p, p, dtype=torch.float64, generator=torch.Generator().manual_seed(p))
    assert taken(x, g) == pytest.approx(best_tangent_direction(x, g, 50), rel=1e-12)


@pytest.mark.parametrize("shape", [(3, 5), (6, 8), (6, 12)])
def test_one_projection_is_close_to_the_dual_optimum(shape):
    """docs/methods/stiefelmuon.md: the gap. The optimum cannot be less, which tests the oracle."""
    for seed in range(3):
        x = point(*shape, dtype=torch.float64, seed=seed).detach()
        g = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        ratio = taken(x, g) / best_tangent_direction(x, g, 1500)
        assert 0.8 < ratio <= 1 + 1e-9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(16, 16), (8, 24)])
def test_half_precision_keeps_its_master_on_the_manifold(dtype, shape):
    param = torch.nn.Parameter(point(*shape).detach().to(dtype))
    opt = oo.StiefelMuon([param], 0.05)
    for t in range(20):
        set_gradients([param], t)
        opt.step()
    assert oo.distance(opt.state[param]["master"]) < 1e-4
    assert oo.distance(param) < 0.1


@pytest.mark.parametrize(
    "options",
    [
        {"ns_steps": 0},
        {"ns_coefficients": "remez"},
        {"ns_coefficients": (1.0, 2.0)},
        {"ns_coefficients": (4.0, 4.0, 4.0)},
        {"ns_dtype": "float8"},
        {"landing": "root"},
        {"eps": -1.0},
        {"momentum": -1.0},
    ],
)
def test_bad_options(options):
    with pytest.raises(ValueError, match=r"Invalid (ns_steps|ns_coefficients|ns_dtype|landing|eps|momentum)"):
        oo.StiefelMuon([point(4, 6)], 0.1, **options)


def test_options_stand_in_the_group_under_the_names_of_torch():
    first, second = point(4, 6), point(4, 4)
    opt = oo.StiefelMuon([{"params": [first]}, {"params": [second], "momentum": 0.5, "ns_steps": 5}], lr=0.02)
    assert [group["momentum"] for group in opt.param_groups] == [0.95, 0.5]
    assert [group["ns_steps"] for group in opt.param_groups] == [6, 5]
    assert [bucket.form for bucket in opt.plan()] == ["gram", "skew"]
