"""The forms of one step agree with each other and with the reference; rounding errors do not pile up."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from orthoptim import stiefel
from orthoptim.stiefel.batches import _symmetric, symmetric
from tests import reference
from tests.strategies import (
    DOUBLE,
    DTYPES,
    dtypes,
    eps,
    gaussian,
    gradient,
    log_uniform,
    of_norm,
    orthonormal,
    seeds,
    shapes,
)
from tests.strategies import (
    rescued as rescued_in,
)

FORMS = tuple(stiefel.FORMS)
TOLERANCE = {torch.float32: 1e-6, torch.complex64: 1e-6, torch.float64: 1e-12, torch.complex128: 1e-12}


def relative_error(x, expected):
    """‖X − X′‖_F/‖X′‖_F, the worst of a batch."""
    difference = np.linalg.norm(reference.double(x) - expected, axis=(-2, -1))
    return (difference / np.linalg.norm(expected, axis=(-2, -1))).max()


def leaps(landing, forms):
    """ξ = η‖G‖_F: where nothing clips, no farther than the landing can follow; ``gram`` clips ξ > 2τ as well."""
    clip = {"safe": 1.0, "strict": 0.5}.get(landing)
    if clip is None:
        return log_uniform(-4, 0)
    return log_uniform(-4, math.log10(1.99 * clip) if "gram" in forms else 0.5)


@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("shape", [(5, 3, 3), (5, 2, 4), (5, 1, 3)])
def test_tiny_matrices_step_alike_where_a_tracer_plans_the_memory(shape, dtype, landing, monkeypatch):
    x, g, policy = orthonormal(shape, dtype, 0), gaussian(shape, dtype, 1), stiefel.policy(landing)
    expected = stiefel.pogo_step(x, g, 0.1, policy, "tiny")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    traced = stiefel.pogo_step(x, g, 0.1, policy, "tiny")
    torch.testing.assert_close(traced.x, expected.x, rtol=0, atol=1e-14)
    assert torch.equal(rescued_in(traced), rescued_in(expected))


@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("form", [*FORMS, None])
@settings(max_examples=40)
@given(
    data=st.data(),
    shape=shapes(),
    dtype=dtypes,
    seed=seeds,
    size=st.sampled_from([1.0, 0.9]),  # on and off the manifold
    lr=log_uniform(-2, 2),
    steps=st.integers(1, 4),
)
def test_every_form_and_landing_equals_the_reference(form, landing, data, shape, dtype, seed, size, lr, steps):
    x = size * orthonormal(shape, dtype, seed)
    g = gradient(x, seed + 1, norm=data.draw(leaps(landing, [form])) / lr)
    expected = reference.each(lambda x, g: reference.pogo_step(x, g, lr, landing, steps), x, g)
    step = stiefel.pogo_step(x, g, lr, stiefel.policy(landing, steps), form)
    assert step.x.shape == shape
    assert step.x.dtype == dtype
    assert relative_error(step.x, expected) <= TOLERANCE[dtype]


@pytest.mark.parametrize("landing", stiefel.POLICIES)
@settings(max_examples=40)
@given(data=st.data(), shape=shapes(), dtype=dtypes, seed=seeds)
def test_forms_agree_with_each_other(landing, data, shape, dtype, seed):
    x = orthonormal(shape, dtype, seed)
    g = gradient(x, seed + 1, norm=data.draw(leaps(landing, FORMS)))
    points = [stiefel.pogo_step(x, g, 1.0, stiefel.policy(landing), form).x for form in FORMS]
    for a, b in itertools.combinations(points, 2):
        assert relative_error(a, reference.double(b)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15)
@given(shape=shapes(min_rank=1), dtype=dtypes, seed=seeds)
def test_a_tensor_lr_holds_for_each_matrix(form, landing, shape, dtype, seed):
    x = orthonormal(shape, dtype, seed)
    g = gradient(x, seed + 1)
    lr = 10 ** -gaussian(shape[:-2], torch.float64, seed + 2).abs()
    lr = lr.to(x.real.dtype)
    expected = reference.each(lambda x, g, lr: reference.pogo_step(x, g, lr, landing), x, g, lr)
    step = stiefel.pogo_step(x, g, lr, stiefel.policy(landing), form)
    assert relative_error(step.x, expected) <= TOLERANCE[dtype]


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_lr_broadcasts_against_the_batch(form):
    x = orthonormal((2, 3, 4, 6), torch.float64, 0)
    g, lr = gradient(x, 1), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    policy = stiefel.policy("safe")
    expected = torch.stack([stiefel.pogo_step(x[:, i], g[:, i], lr[i], policy, form).x for i in range(3)], 1)
    torch.testing.assert_close(stiefel.pogo_step(x, g, lr, policy, form).x, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15)
@given(shape=shapes(), dtype=dtypes, seed=seeds)
def test_a_step_changes_neither_the_point_nor_the_direction(form, landing, shape, dtype, seed):
    x = orthonormal(shape, dtype, seed)
    g = gradient(x, seed + 1)
    before = x.clone(), g.clone()
    stiefel.pogo_step(x, g, 0.5, stiefel.policy(landing), form)
    assert torch.equal(x, before[0])
    assert torch.equal(g, before[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_zero_direction_or_a_zero_lr_leaves_an_orthonormal_matrix(form, landing, dtype):
    x = torch.eye(3, 5, dtype=dtype)
    policy = stiefel.policy(landing)
    assert torch.equal(stiefel.pogo_step(x, torch.zeros_like(x), 0.5, policy, form).x, x)
    assert torch.equal(stiefel.pogo_step(x, gradient(x, 0), 0.0, policy, form).x, x)


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("form", FORMS)
def test_the_matrices_whose_leap_is_shortened_are_reported(form, dtype):
    x = orthonormal((4, 3, 6), dtype, 0)
    g = gradient(x, 1, kind="tangent")
    longest = 1 / torch.linalg.matrix_norm(stiefel.relative_gradient(x, g))
    lr = longest * torch.tensor([0.5, 0.999, 1.001, 1e6], dtype=torch.float64)
    step = stiefel.pogo_step(x, g, lr, stiefel.policy("safe"), form)
    assert step.clipped.tolist() == [False, False, True, True]
    assert stiefel.pogo_step(x, g, lr, stiefel.policy("half"), form).clipped is None


@given(shapes(max_rank=0, max_n=2000), st.booleans())
def test_the_chosen_form_costs_least(shape, normalized):
    p, n = shape
    forms = ["direct-n", "direct-p", "gram"] if normalized else ["direct-n", "direct-p"]
    chosen = stiefel.choose(p, n, normalized)
    if n <= 4:
        assert chosen == "tiny"
    else:
        costs = {form: stiefel.multiply_adds(form, p, n) for form in forms}
        assert costs[chosen] == min(costs.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_scale_is_a_factor_of_the_direction(form, landing, normalized, dtype):
    x = orthonormal((3, 3, 6), dtype, 0)
    scale = torch.tensor([0.01, 1.0, 100.0], dtype=x.real.dtype)
    g = gradient(x, 1, torch.tensor([0.1, 0.9, 3.0]))
    policy = stiefel.policy(landing)
    lr = 1.0 if policy.clip else 0.1
    step = stiefel.pogo_step(x, g / scale[:, None, None], lr, policy, form, scale=scale, normalized=normalized)
    whole = stiefel.pogo_step(x, g, lr, policy, form, normalized=normalized)
    torch.testing.assert_close(step.x, whole.x, rtol=0, atol=TOLERANCE[dtype])
    if policy.clip:
        assert torch.equal(step.clipped, whole.clipped)
        assert step.clipped.tolist()[::2] == [False, True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(8, 3), (7, 9), (2, 13, 5), (3, 2, 4, 6)])
@pytest.mark.parametrize("levels", [0, 1, 2])
def test_a_symmetric_product_by_any_levels_of_blocks_is_the_product(levels, shape, dtype):
    x = gaussian(shape, dtype, 0)
    product = _symmetric(x, levels)
    torch.testing.assert_close(product, x @ x.mH, rtol=0, atol=100 * eps(dtype))
    if levels:  # the upper half is the adjoint of the lower to the last bit
        half = shape[-2] // 2
        assert torch.equal(product[..., :half, half:], product[..., half:, :half].mH)


def work(p, n):
    """The part of the full product's multiply–adds that a symmetric one takes."""
    x = gaussian((p, n), torch.float32, 0)
    with FlopCounterMode(display=False) as counter:
        product = symmetric(x)
    torch.testing.assert_close(product, x @ x.mH, rtol=1e-4, atol=1e-3)
    return counter.get_total_flops() / (2 * p * p * n)


def test_two_levels_of_blocks_save_three_eighths_where_there_is_work_enough():
    assert work(256, 4096) == 5 / 8
    assert work(256, 4095) == 1  # less than 2²⁸ multiply–adds
    assert work(255, 4200) == 1  # too few rows


def without_feedback(x, g, lr):
    """A step that takes XXᴴ for I."""
    r = 0.5 * (g - (x @ g.mH) @ x)
    m = x - lr * r
    return m - 0.5 * lr**2 * (r @ r.mH) @ m


def walk(step, dtype, steps, lr):
    """Distance in double precision after many steps along unit gradients, in a shuffled cycle."""
    x = orthonormal((16, 32), dtype, 0)
    gradients = list(of_norm(gaussian((256, 16, 32), dtype, 1), 1.0))
    with torch.inference_mode():
        for t in range(steps):
            x = step(x, gradients[t * 101 % 256], lr)
    return np.linalg.norm(reference.defect(reference.double(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_fact_8_measuring_x_x_keeps_rounding_from_growing_and_replacing_it_by_i_does_not(dtype):
    policy = stiefel.policy("half")
    lr = torch.tensor(0.1)
    assert walk(lambda x, g, lr: stiefel.pogo_step(x, g, lr, policy).x, dtype, 1000, lr) <= 1e-6
    assert walk(without_feedback, dtype, 1000, lr) >= 1e-4


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("landing", ["safe", "half"])
def test_fact_8_many_float32_steps_stay_within_1e_6(landing, count):
    policy = stiefel.policy(landing)
    lr = torch.tensor(0.01)
    assert walk(lambda x, g, lr: stiefel.pogo_step(x, g, lr, policy).x, torch.float32, count, lr) <= 1e-6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("landing", ["safe", "strict"])
def test_a_zero_direction_is_not_clipped(form, landing):
    x, policy = orthonormal((5, 3, 4), torch.float32, 0), stiefel.policy(landing)
    normalized = form == "gram"  # which serves no other directions
    assert not stiefel.pogo_step(x, torch.zeros_like(x), 0.1, policy, form, normalized=normalized).clipped.any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(5, 2, 4), (5, 4, 4)])
def test_a_step_writes_to_no_memory_of_another_shape(form, shape):
    """Of which torch warns."""
    x = orthonormal(shape, torch.float32, 0)
    stiefel.pogo_step(x, gaussian(shape, torch.float32, 1), 0.1, stiefel.policy("safe"), form)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "gram"])  # which serves normalised directions
def test_a_gradient_whose_squares_overflow_moves_as_far_as_the_clip_allows(form):
    x = orthonormal((5, 3, 4), torch.float32, 0)
    step = stiefel.pogo_step(x, 1e25 * gaussian((5, 3, 4), torch.float32, 1), 1.0, stiefel.policy("strict"), form)
    assert step.clipped.all()
    assert (torch.linalg.matrix_norm(step.x - x) > 0.2).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_lands_on_the_same_bits_beside_any_other(form, landing, dtype):
    """Where no matrix is far away a step computes less, which must not show; halving rounds subnormal numbers."""
    policy = stiefel.policy(landing)
    subnormal = 1e-3 * torch.finfo(dtype).smallest_normal
    for length in (0.9, 0.3):  # that of a row: near, and far away
        x = torch.eye(2, 4, dtype=dtype).repeat(20, 1, 1) + subnormal * gaussian((20, 2, 4), dtype, 0)
        g = subnormal * gaussian((20, 2, 4), dtype, 1)
        x[:, 1, 1] = length
        x[1] = orthonormal((2, 4), dtype, 2)
        outcomes = []
        for neighbour in (1.0, 30.0, math.inf, math.nan):
            x[0] = neighbour * torch.eye(2, 4, dtype=dtype)
            outcomes.append(stiefel.pogo_step(x, g, 1.0, policy, form).x[1:])
        assert torch.isfinite(outcomes[0]).all()
        assert all(torch.equal(outcome, outcomes[0]) for outcome in outcomes)
