"""How far from the manifold a step may end: the orders and the bounds of the landing policies."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orthoptim import stiefel
from orthoptim.stiefel.policies import are_between, are_near, clip, leap_square, newton_schulz
from tests.stiefel.landings import FORM_SHAPES, half, norm, spectral_distance
from tests.strategies import (
    DOUBLE,
    KINDS,
    doubles,
    dtypes,
    eps,
    gaussian,
    gradient,
    kinds,
    orthonormal,
    seeds,
    shapes,
)
from tests.strategies import (
    rescued as rescued_in,
)

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
