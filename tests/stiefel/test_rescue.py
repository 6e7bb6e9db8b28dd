"""Matrices that are far away come back, and are flagged."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orthoptim import stiefel
from tests.stiefel.landings import FORM_SHAPES, spectral_distance
from tests.strategies import (
    dtypes,
    gradient,
    kinds,
    orthonormal,
    seeds,
    shapes,
)
from tests.strategies import (
    rescued as rescued_in,
)

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
