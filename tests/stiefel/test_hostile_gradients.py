"""No gradient of any size or direction leads a clipped step far away."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from orthoptim import stiefel
from orthoptim.stiefel.policies import newton_schulz
from tests import reference
from tests.stiefel.landings import FORM_SHAPES, norm, spectral_distance
from tests.strategies import (
    DOUBLE,
    DTYPES,
    KINDS,
    eps,
    gaussian,
    gradient,
    of_norm,
    orthonormal,
)
from tests.strategies import (
    rescued as rescued_in,
)


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
def test_eight_thousand_hostile_gradients_never_lead_far_away(shape, landing, bound, dtype):
    policy = stiefel.policy(landing)
    x = orthonormal((32, *shape), dtype, 0)
    points = []
    for g in of_norm(gaussian((250, *x.shape), dtype, 1), hostile_sizes(250, 32)):
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
