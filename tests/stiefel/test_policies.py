"""How far from the manifold a step may end: the orders and the bounds of the landing policies."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orthoptim import stiefel
from orthoptim.stiefel.policies import are_between, are_near, clip, leap_square, newton_schulz
from tests import reference
from tests.strategies import (
    DOUBLE,
    DTYPES,
    KINDS,
    doubles,
    dtypes,
    eps,
    gaussian,
    gradient,
    kinds,
    of_norm,
    orthonormal,
    seeds,
    shapes,
)
from tests.strategies import (
    rescued as rescued_in,
)

norm = torch.linalg.matrix_norm


def spectral_distance(x):
    """‖XXᴴ − I‖₂ in double precision, the worst of a batch."""
    x = x.to(torch.complex128)
    return float(torch.linalg.eigvalsh(stiefel.defect(x)).abs().max())


def half(x, g, lr):
    return stiefel.pogo_step(x, g, lr, stiefel.policy("half")).x


# One step from the manifold


@given(shapes(), doubles, seeds, kinds, st.floats(0.01, math.sqrt(6)))
def test_fact_3_the_squared_distance_after_half_is_at_most_nine_sixteenths_xi_to_the_eighth(
    shape, dtype, seed, kind, xi
):
    x = orthonormal(shape, dtype, seed)
    distance = stiefel.distance(half(x, gradient(x, seed + 1, xi, kind), 1.0))
    assert (distance <= 0.75 * xi**4 + 20 * eps(dtype) * shape[-2]).all()


@pytest.mark.parametrize("xi", [0.01, 0.1, 0.3])
def test_fact_3_the_bound_is_reached_by_a_unitary_rotation(xi):
    x = orthonormal((3, 5), torch.complex128, 0)
    distance = float(stiefel.distance(half(x, gradient(x, 1, xi, "rotation"), 1.0)))
    assert distance == pytest.approx(0.75 * xi**4 * (1 - xi**2 / 3), rel=1e-6)


@given(shapes(), doubles, seeds, kinds, st.floats(0, math.sqrt(3)))
def test_fact_4_no_singular_value_exceeds_one_after_half_while_xi_squared_is_at_most_three(
    shape, dtype, seed, kind, xi
):
    x = orthonormal(shape, dtype, seed)
    landed = half(x, gradient(x, seed + 1, xi, kind), 1.0)
    assert (torch.linalg.eigvalsh(landed @ landed.mH) <= 1 + 20 * eps(dtype) * shape[-2]).all()


@pytest.mark.parametrize("k", [1, 2, 3])
@settings(max_examples=20)
@given(shape=shapes(max_rank=0), dtype=doubles, seed=seeds)
def test_fact_6_the_log_log_slope_of_the_distance_after_k_landings_is_two_to_the_k_plus_one(k, shape, dtype, seed):
    assume(shape != (1, 1) or dtype.is_complex)  # ±1 has nowhere to go
    x = orthonormal(shape, dtype, seed)
    g = gradient(x, seed + 1, kind="generic")
    length = torch.linalg.matrix_norm(stiefel.relative_gradient(x, g), 2)
    # ‖ηR‖₂ large enough for the distance to stand clear of rounding, small enough for the next order not to show
    low, high = {1: (0.01, 0.02), 2: (0.06, 0.12), 3: (0.2, 0.28)}[k]
    policy = stiefel.policy("newton-schulz", k)
    distances = [float(stiefel.distance(stiefel.pogo_step(x, g, e / length, policy).x)) for e in (low, high)]
    slope = math.log(distances[1] / distances[0]) / math.log(high / low)
    assert slope == pytest.approx(2 ** (k + 1), rel=0.02)


@given(shapes(max_rank=1), doubles, seeds, st.integers(1, 5))
def test_k_landings_at_once_are_k_landings_one_after_the_other(shape, dtype, seed, k):
    m = orthonormal(shape, dtype, seed) * 1.1 + 0.05 * gaussian(shape, dtype, seed + 1) / shape[-1]
    expected = m
    for _ in range(k):
        expected = stiefel.newton_schulz_step(expected)
    landed = m + newton_schulz(stiefel.defect(m), k) @ m
    torch.testing.assert_close(landed, expected, rtol=0, atol=1e-14)


@given(shapes(), dtypes, seeds, kinds, st.floats(0, 1))
def test_safe_is_half_and_never_clips_while_xi_is_at_most_one(shape, dtype, seed, kind, xi):
    x = orthonormal(shape, dtype, seed)
    g = gradient(x, seed + 1, xi * (1 - 10 * eps(dtype)), kind)
    step = stiefel.pogo_step(x, g, 1.0, stiefel.policy("safe"))
    assert not step.clipped.any()
    torch.testing.assert_close(step.x, half(x, g, 1.0), rtol=0, atol=4 * eps(dtype))


@settings(max_examples=100)
@given(shapes(), doubles, seeds, st.sampled_from(["generic", "tangent", "rotation"]), st.floats(0, 1.4))
def test_argmin_lands_at_least_as_near_as_half_and_root(shape, dtype, seed, kind, xi):
    x = orthonormal(shape, dtype, seed)
    g = gradient(x, seed + 1, xi, kind)
    distances = {
        name: stiefel.distance(stiefel.pogo_step(x, g, 1.0, stiefel.policy(name)).x)
        for name in ("argmin", "half", "root")
    }
    for name in ("half", "root"):
        assert (distances["argmin"] <= distances[name] + 20 * eps(dtype) * shape[-2]).all()


@pytest.mark.parametrize("landing", stiefel.POLICIES)
def test_a_policy_that_says_half_corrects_by_minus_half_of_c(landing):
    policy = stiefel.policy(landing)
    c = stiefel.sym(gaussian((2, 3, 3), torch.float64, 0))
    assert policy.half == torch.equal(policy.correction(c), -0.5 * c) == (landing in ("safe", "half"))


def test_an_unknown_landing_is_refused():
    with pytest.raises(ValueError, match="Invalid landing: 'moon'"):
        stiefel.policy("moon")


# Forever


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("kind", ["generic", "tangent", "rotation"])
@pytest.mark.parametrize("xi", [0.3, 1.0, 1.4])
@pytest.mark.parametrize("shape", [(1, 2), (3, 3), (3, 8)])
def test_fact_5_with_half_the_distance_is_at_most_three_quarters_xi_to_the_fourth_at_every_step(shape, xi, kind, dtype):
    x = orthonormal((8, *shape), dtype, 0)
    points = []
    for t in range(100):
        x = half(x, gradient(x, t, xi, kind), 1.0)
        points.append(x)
    assert spectral_distance(torch.stack(points)) <= 0.75 * xi**4 + 20 * eps(dtype)


def test_half_loses_a_direction_at_the_square_root_of_two_and_safe_does_not():
    x = orthonormal((3, 5), torch.complex128, 0)
    g = gradient(x, 1, math.sqrt(2), "rotation")
    assert float(torch.linalg.svdvals(half(x, g, 1.0)).min()) <= 1e-14
    safe = stiefel.pogo_step(x, g, 1.0, stiefel.policy("safe")).x
    assert float(torch.linalg.svdvals(safe).min()) >= math.sqrt(0.5) - 1e-15


def test_half_leaves_the_manifold_past_two_and_safe_does_not():
    x = y = orthonormal((3, 5), torch.complex128, 0)
    rescued = False
    for _ in range(3):
        step = stiefel.pogo_step(x, gradient(x, 0, 2.1, "rotation"), 1.0, stiefel.policy("half"))
        x, rescued = step.x, rescued or bool(step.rescued)
        safe = stiefel.pogo_step(y, gradient(y, 0, 2.1, "rotation"), 1.0, stiefel.policy("safe"))
        y = safe.x
        assert not rescued_in(safe)
        assert spectral_distance(y) <= 0.5 + 20 * eps(x.dtype)
    assert rescued


def worst_case(tau, k):
    """The largest δ that (τ, k) allows: spec(MMᴴ) ⊂ [1−δ, 1+τ²] is mapped into [1−δ′, 1], k times."""
    e = tau**2
    delta = e**2 * (3 - e) / 4
    for _ in range(k - 1):
        delta = delta**2 * (3 + delta) / 4
    return delta


TABLE = [(1.0, k, bound) for k, bound in enumerate([0.5, 0.22, 0.039, 1.1e-3, 9.5e-7], 1)]
TABLE += [(0.5, k, bound) for k, bound in enumerate([0.043, 1.4e-3, 1.5e-6], 1)]


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("form", ["direct-n", "direct-p"])
@pytest.mark.parametrize(("tau", "k", "bound"), TABLE)
def test_the_guaranteed_bound_of_a_clip_and_k_landings_holds_and_is_reached(tau, k, bound, form, dtype):
    assert worst_case(tau, k) == pytest.approx(bound, rel=0.03)  # the table has two digits
    policy = stiefel.Policy(tau, partial(newton_schulz, steps=k))
    distances = []
    for shape in [(1, 3), (2, 2), (3, 5)]:
        x = orthonormal((4, *shape), dtype, 0)
        points = []
        for t in range(30):
            size = 10.0 ** gaussian((4,), torch.float64, t)
            x = stiefel.pogo_step(x, gradient(x, t, size, KINDS[t % 3]), 1.0, policy, form).x
            points.append(x)
        distances.append(spectral_distance(torch.stack(points)))
    assert 0.99 * worst_case(tau, k) <= max(distances) <= worst_case(tau, k) + 20 * eps(dtype)


def hostile_sizes(*shape):
    """Log-uniform from 1e-30 to 1e30."""
    return 10 ** (60 * torch.rand(shape, dtype=torch.float64) - 30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("landing", "bound"), [("safe", 0.5), ("strict", 1e-5)])
@pytest.mark.parametrize("shape", [(2, 2), (3, 8)])
def test_a_thousand_hostile_gradients_never_lead_far_away(shape, landing, bound, dtype):
    policy = stiefel.policy(landing)
    x = orthonormal((8, *shape), dtype, 0)
    points = []
    for g in of_norm(gaussian((1000, *x.shape), dtype, 1), hostile_sizes(1000, 8)):
        x = stiefel.pogo_step(x, g, 0.5, policy).x
        points.append(x)
    points = torch.stack(points)
    assert torch.isfinite(points.abs()).all()
    assert spectral_distance(points) <= bound + 10 * eps(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("landing", "bound"), [("safe", 0.5), ("strict", 1e-5)])
@pytest.mark.parametrize("shape", [(3, 3), (3, 8)])
@pytest.mark.parametrize("kind", ["tangent", "rotation", "normal", "nearly normal"])
def test_hostile_gradients_of_every_direction_never_lead_far_away(kind, shape, landing, bound, dtype):
    policy = stiefel.policy(landing)
    x = orthonormal((8, *shape), dtype, 0)
    tangent_part = 10.0 ** -torch.arange(1, 17, 2, dtype=torch.float64)
    points = []
    for t in range(100):
        if kind == "nearly normal":
            g = gradient(x, t, 1.0, "normal") + gradient(x, t, tangent_part, "tangent")
        else:
            g = gradient(x, t, 1.0, kind)
        x = stiefel.pogo_step(x, of_norm(g, hostile_sizes(8)), 0.5, policy).x
        points.append(x)
    points = torch.stack(points)
    assert torch.isfinite(points.abs()).all()
    assert spectral_distance(points) <= bound + 10 * eps(dtype)


FORM_SHAPES = [("tiny", (3, 3)), ("direct-n", (10, 10)), ("direct-p", (4, 12)), ("gram", (4, 12))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("landing", "bound"), [("safe", 0.5), ("strict", 1.5e-6)])
@pytest.mark.parametrize(("form", "shape"), FORM_SHAPES)
def test_a_gradient_that_is_almost_normal_never_leads_far_away(form, shape, landing, bound, dtype):
    # what is left of R is rounding, and squares of it beside |G|² underflow: distances of 1e48 were reached
    policy = stiefel.policy(landing)
    x = orthonormal((8, *shape), dtype, 0)
    largest = 14 if form == "gram" else 27  # which is for normalised directions only, and squares them
    sizes = torch.logspace(6, largest, 8, dtype=torch.float64)
    points = []
    for t in range(30):
        g = (x.to(torch.complex128 if dtype.is_complex else torch.float64) * sizes[:, None, None]).to(dtype)
        step = stiefel.pogo_step(x, g + gaussian(x.shape, dtype, t), 1.0, policy, form)
        assert not rescued_in(step).any()
        x = step.x
        points.append(x)
    points = torch.stack(points)
    assert torch.isfinite(points.abs()).all()
    assert spectral_distance(points) <= bound + 10 * shape[0] * eps(dtype)


def test_the_smallest_almost_normal_gradient_that_led_away():
    g = 1e12 * torch.eye(3) + torch.tensor([[0.0, 3, 0], [0, 0, 3], [0, 0, 0]])
    for landing, bound in (("safe", 0.5), ("strict", 1.5e-6)):
        assert spectral_distance(stiefel.pogo_step(torch.eye(3), g, 1.0, stiefel.policy(landing)).x) <= bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("landing", "bound"), [("safe", 0.5), ("strict", 1.5e-6)])
@pytest.mark.parametrize(("form", "shape"), FORM_SHAPES)
def test_gradients_whose_squares_underflow_never_lead_far_away(form, shape, landing, bound, dtype):
    # as VAdam gives them to a step whose learning rate is absurd: a factor beside small entries
    policy = stiefel.policy(landing)
    x = orthonormal((12, *shape), dtype, 0)
    size = torch.logspace(-38, -16, 12, dtype=torch.float64)[:, None, None]
    scale = torch.full((12,), 1e8, dtype=x.real.dtype)
    points = []
    for t in range(20):
        g = (gaussian(x.shape, dtype, t) * size).to(dtype)
        lr = torch.tensor(10.0 ** (t + 2), dtype=x.real.dtype)
        step = stiefel.pogo_step(x, g, lr, policy, form, scale=scale, normalized=True)
        assert not rescued_in(step).any()
        x = step.x
        points.append(x)
    points = torch.stack(points)
    assert torch.isfinite(points.abs()).all()
    assert spectral_distance(points) <= bound + 10 * shape[0] * eps(dtype)


@settings(max_examples=30)
@given(shapes(min_rank=1, max_rank=1), dtypes, seeds)
def test_the_frobenius_distance_under_safe_stays_within_one_over_root_three(shape, dtype, seed):
    policy = stiefel.policy("safe")
    x = orthonormal(shape, dtype, seed)
    for t in range(20):
        step = stiefel.pogo_step(x, gradient(x, seed + t, 1e3, KINDS[t % 3]), 1.0, policy)
        x = step.x
        assert not rescued_in(step).any()
        assert (stiefel.distance(x) <= 3**-0.5 + 10 * shape[-2] * eps(dtype)).all()


@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("form", [form for form, _ in FORM_SHAPES])
def test_a_negative_learning_rate_is_clipped(form, landing):
    x = orthonormal((5, 3, 4), torch.float64, 0)
    step = stiefel.pogo_step(x, gradient(x, 1), -1e6, stiefel.policy(landing), form)
    assert step.clipped.all()
    assert spectral_distance(step.x) <= 0.5 + 20 * eps(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_length_is_cut_off_at_the_clip_and_squares_that_underflow_are_taken_for_the_largest_that_do(dtype):
    info = torch.finfo(dtype)
    eta = torch.tensor([0.1, 1.0, -1.0, 1e30, 1.0], dtype=dtype)
    size = torch.tensor([4.0, 4.0, 4.0, 0.0, 0.0], dtype=dtype)
    length = clip(eta, size, 3, stiefel.policy("safe"))
    longest = math.sqrt(info.eps / info.tiny)
    np.testing.assert_allclose(length.s, [0.1, 0.5, -0.5, min(1e30, longest), 1.0], rtol=1e-6)
    assert length.clipped.tolist() == [False, True, True, longest < 1e30, False]
    np.testing.assert_allclose(leap_square(length), [0.04, 1, 1, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("lr", [1e6, -1e6])
@pytest.mark.parametrize("form", ["direct-n", "direct-p", "gram"])  # tiny saves the passes
def test_a_leap_that_no_policy_could_follow_is_cut_off_at_ten_for_each_row(form, lr):
    for p in (1, 2, 4):
        x = orthonormal((2, p, 6), torch.float64, 0)
        policy = stiefel.Policy(None, torch.zeros_like, reach=math.inf)
        leap = stiefel.pogo_step(x, gradient(x, 1, 1.0, "tangent"), lr, policy, form).x - x
        np.testing.assert_allclose(norm(leap), 10 * math.sqrt(p), rtol=1e-6)


# Far away


SCALES = [3.0, math.sqrt(3), 2.3, 1e3, 1e10, 1e18, 0.01, 1e-10]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("landing", ["safe", "strict", "half", "newton-schulz"])
@pytest.mark.parametrize(("form", "shape"), FORM_SHAPES)
def test_a_matrix_of_full_rank_that_is_far_away_comes_back(form, shape, landing, dtype):
    policy = stiefel.policy(landing)
    x = orthonormal((1, *shape), dtype, 0) * torch.tensor(SCALES)[:, None, None]
    if landing in ("half", "newton-schulz") or form == "gram":
        x = x[[0, 3, 6]]  # 3, 1000 and 0.01: without a clip √3 loses a direction; gram squares XXᴴ
    for t in range(80):
        x = stiefel.pogo_step(x, gradient(x, t, 1e-2), 0.1, policy, form).x
        assert torch.isfinite(x.abs()).all()
    assert spectral_distance(x) <= 1e-3


@pytest.mark.parametrize("landing", ["safe", "strict"])
def test_a_rescue_leaves_the_directions_of_a_scaled_matrix(landing):
    x = orthonormal((6, 8), torch.float64, 0)
    step = stiefel.pogo_step(3 * x, torch.zeros_like(x), 0.1, stiefel.policy(landing))
    assert rescued_in(step)
    singular = torch.linalg.svdvals(step.x)
    torch.testing.assert_close(step.x, singular[0] * x)
    assert singular[0] <= 1


def rescue(size, top, p=2, landing="safe", leap=0.0):
    """Scale, whether it lands, and flag of matrices with these ‖C‖_F² and largest diagonal entries of C."""
    size, top = torch.tensor(size, dtype=torch.float64), torch.tensor(top, dtype=torch.float64)
    lengths = None if leap is None else torch.full_like(size, leap)
    return (found.tolist() for found in stiefel.rescue(top, p, stiefel.policy(landing), size, lengths))


def test_a_matrix_is_scaled_where_the_diagonal_shows_that_it_is_far_away():
    scale, lands, flag = rescue([1.0, 1.21, 100.0], [1.09, 1.11, 9.0])
    bounds = [2, 2 * 2.11, 2 * 10]  # p times the largest diagonal entry of MMᴴ
    assert scale == pytest.approx([1, math.sqrt(2 / bounds[1]), math.sqrt(2 / bounds[2])], rel=1e-12)
    assert lands == [1, 1, 1]
    assert flag[1:] == [True, True]
    scale, _, flag = rescue([1e4, 1e4], [98.9, 99.1], landing="half", leap=None)
    assert scale == pytest.approx([1, math.sqrt(2 / 200.2)], rel=1e-12)
    assert flag == [False, True]


def test_a_matrix_is_scaled_by_a_hundredth_at_most_and_then_not_landed():
    scale, lands, flag = rescue([1.0, 1.0], [0.9e4, 1.1e4])  # 2/(p(1 + top)) on both sides of 1e-4
    assert scale == pytest.approx([math.sqrt(1 / 9001), 0.01], rel=1e-12)
    assert lands == [1, 0]
    assert flag == [True, True]


def test_what_steps_from_the_manifold_do_not_explain_is_flagged():
    for leap in (0.0, 0.5, 1.0):
        _, _, flag = rescue([leap**2 + 0.35, leap**2 + 0.37], [0.0, 0.0], leap=leap)
        assert flag == [False, True]
    _, _, flag = rescue([1.0, 1.0], [-0.49, -0.51], landing="half", leap=None)
    assert flag == [False, True]


@pytest.mark.parametrize("form", stiefel.FORMS)
def test_a_short_row_is_flagged_by_policies_that_clip_whatever_the_form(form):
    x = torch.eye(2, 3, dtype=torch.float64)
    x[1, 1] = 0.5
    flags = {
        landing: bool(stiefel.pogo_step(x, 0.01 * torch.ones_like(x), 0.1, stiefel.policy(landing), form).rescued)
        for landing in stiefel.POLICIES
    }
    assert flags == {landing: landing in ("safe", "strict") for landing in stiefel.POLICIES}


@given(shapes(), dtypes, seeds, kinds, st.floats(0, 1))
def test_an_ordinary_step_is_not_a_rescue_and_is_not_changed_by_the_possibility(shape, dtype, seed, kind, xi):
    x = orthonormal(shape, dtype, seed)
    c = stiefel.defect(x.reshape(-1, *shape[-2:]) + xi * 0.1)
    size = torch.linalg.matrix_norm(c) ** 2
    top = c.diagonal(dim1=-2, dim2=-1).real.amax(-1)
    found = stiefel.rescue(top.clamp_max(1), shape[-2], stiefel.policy("safe"), size, torch.full_like(size, 9.0))
    assert (found.scale == 1).all()
    assert not (found.flag & (size <= 81)).any()
    factor, shift = stiefel.half_factors(found.scale, found.lands)
    assert (factor == 1).all()
    assert (shift == 0).all()


@pytest.mark.parametrize(("landing", "bound"), [("safe", 0.5), ("strict", 1e-5)])
def test_hostile_gradients_at_points_of_a_circle_never_lead_far_away(landing, bound):
    # one tangent direction only: some of a thousand random gradients are nearly normal
    policy = stiefel.policy(landing)
    x = orthonormal((64, 1, 2), torch.float32, 0)
    points = []
    for g in of_norm(gaussian((1000, *x.shape), x.dtype, 1), hostile_sizes(1000, 64)):
        x = stiefel.pogo_step(x, g, 0.5, policy).x
        points.append(x)
    assert spectral_distance(torch.stack(points)) <= bound + 10 * eps(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("shape", [(2, 2), (3, 8)])
def test_a_learning_rate_times_a_gradient_that_overflows_is_clipped(shape, landing, dtype):
    x = orthonormal(shape, dtype, 0)
    huge = math.sqrt(torch.finfo(dtype).max)
    step = stiefel.pogo_step(x, gradient(x, 1, huge, "tangent"), 1e3 * huge, stiefel.policy(landing))
    assert bool(step.clipped)
    assert spectral_distance(step.x) <= 0.5 + 10 * eps(dtype)


@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("form", ["direct-n", "direct-p"])
def test_a_clipped_leap_has_the_length_of_the_clip(form, landing):
    policy = stiefel.policy(landing)
    x = orthonormal((5, 3, 6), torch.float64, 0)
    g = gradient(x, 1, 1e8, "tangent")
    leap = stiefel.pogo_step(x, g, 1.0, stiefel.Policy(policy.clip, lambda c: torch.zeros_like(c)), form).x - x
    np.testing.assert_allclose(norm(leap), policy.clip, rtol=1e-7)
    r = torch.from_numpy(reference.each(reference.relative_gradient, x, g))
    np.testing.assert_allclose(stiefel.inner(leap, r) / (norm(leap) * norm(r)), -1, rtol=1e-7)


@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_modulus_one_stay_there_whatever_the_gradient(landing, dtype):
    """A real one cannot move: X times its gradient, minus the same, is not zero where one of the two is rounded."""
    steps = torch.arange(50).to(dtype)[:, None, None]
    x, policy = 1 - steps * (torch.finfo(dtype).eps / 2), stiefel.policy(landing)
    for t in range(5):
        x = stiefel.pogo_step(x, 1e20 * gaussian((50, 1, 1), dtype, t), 1.0, policy, "tiny").x
        bound = {"safe": 0.5, "strict": 1.5e-6}[landing] if dtype.is_complex else 0.0
        assert spectral_distance(x) <= bound + 50 * torch.finfo(dtype).eps


def test_mixed_precision_clips_by_what_bfloat16_may_add():
    unit = torch.finfo(torch.bfloat16).eps / 2
    for landing, most, slack in (("safe", 1.0, 24), ("strict", 0.5, 8)):
        mixed = stiefel.policy(landing, mixed=True)
        assert mixed.clip == pytest.approx((most**2 - slack * unit) ** 0.5, rel=1e-15)
        assert mixed.mixed
    assert stiefel.policy("half", mixed=True).clip is None


def test_matrices_are_known_to_be_near_by_a_look_alone(monkeypatch):
    """Values at the bounds are near; of no matrix nothing is known, nor while a tracer looks."""
    sizes, policy = torch.tensor([0.0, 0.35]), stiefel.policy("half")
    assert are_near(0.36)
    assert not are_near(0.37)
    assert are_near(sizes)
    assert are_near(torch.tensor([0.36], dtype=torch.float64))
    assert not are_near(sizes + 0.02)
    assert are_between(torch.tensor([-0.5, 99.0]), policy)
    assert not are_between(torch.tensor([-0.51, 99.0]), policy)
    assert not are_between(torch.tensor([-0.5, 99.1]), policy)
    assert not are_near(sizes[:0])
    assert not are_between(sizes[:0], policy)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not are_near(sizes)
    assert not are_between(sizes, policy)


@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("form", ["direct-n", "direct-p", "gram"])
def test_no_matrices_step_to_no_matrices(form, landing):
    x = torch.empty(0, 3, 5)
    assert stiefel.pogo_step(x, x, 0.1, stiefel.policy(landing), form).x.shape == x.shape
