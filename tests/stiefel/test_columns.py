"""A step on pieces of the columns, whose sums somebody else adds up, is the step on all of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orthoptim import stiefel
from tests import pieces, reference
from tests.strategies import DTYPES, dtypes, eps, gaussian, gradient, kinds, log_uniform, orthonormal, rescued, seeds

FORM = {True: "gram", False: "direct-p"}  # which shorten leaps alike, for directions that are normalised and others


def in_pieces(x, g, lr, policy, normalized=False, scale=None):
    """The update of every piece, and the finiteness probes."""
    lr = torch.as_tensor(lr, dtype=x.real.dtype)
    results = pieces.in_pieces(
        lambda x, direction: stiefel.pogo_columns(x, direction, lr, policy), x, g, scale, normalized=normalized
    )
    return results, [update.finiteness_probe for update in results]


def joined(steps):
    return torch.cat([step.x for step in steps], -1)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("landing", stiefel.POLICIES)
@given(p=st.integers(1, 7), dtype=dtypes, seed=seeds, kind=kinds, scaled=st.booleans(), xi=log_uniform(-3, 0))
def test_pieces_together_take_the_step_of_the_whole(landing, normalized, p, dtype, seed, kind, scaled, xi):
    x = orthonormal((3, p, 7), dtype, seed)
    longest = {"safe": 1.0, "strict": 0.5}.get(landing, 1.0)
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=x.real.dtype) if scaled else None
    g = gradient(x, seed + 1, 1.0 if scale is None else 1 / scale, kind)
    policy = stiefel.policy(landing)
    steps, _ = in_pieces(x, g, 1.9 * longest * xi, policy, normalized, scale)
    form = FORM[normalized]
    whole = stiefel.pogo_step(x, g, 1.9 * longest * xi, policy, form, scale=scale, normalized=normalized)
    torch.testing.assert_close(joined(steps), whole.x, rtol=0, atol=50 * eps(dtype))
    for step in steps:
        assert torch.equal(rescued(step), rescued(whole))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("landing", ["safe", "strict"])
def test_pieces_clip_what_the_whole_clips_and_say_so(landing, normalized, dtype):
    x = orthonormal((4, 3, 7), dtype, 0)
    policy = stiefel.policy(landing)
    for kind in ("tangent", "generic", "normal"):
        g = gradient(x, 1, 1.0, kind)
        r = torch.linalg.matrix_norm(stiefel.relative_gradient(x, g))
        size = torch.maximum(r, torch.full_like(r, 0.5)) if normalized else r.clamp_min(eps(dtype) ** 0.5)
        lr = policy.clip / size * torch.tensor([0.5, 0.99, 1.01, 1e6])
        steps, _ = in_pieces(x, g, lr, policy, normalized)
        for step in steps:
            if kind != "normal" or normalized:  # else R is rounding
                assert step.clipped.tolist() == [False, False, True, True]
        whole = stiefel.pogo_step(x, g, lr, policy, FORM[normalized], normalized=normalized)
        torch.testing.assert_close(joined(steps), whole.x, rtol=0, atol=1e-3 if kind == "normal" else 1e2 * eps(dtype))


def test_pieces_of_policies_that_never_clip_say_none():
    x = orthonormal((2, 3, 7), torch.float64, 0)
    steps, _ = in_pieces(x, gradient(x, 1), 0.1, stiefel.policy("half"))
    assert [step.clipped for step in steps] == [None] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("landing", "bound"), [("safe", 0.5), ("strict", 1.5e-6)])
def test_pieces_of_almost_normal_gradients_never_lead_far_away(landing, bound, dtype):
    policy = stiefel.policy(landing)
    x = orthonormal((8, 4, 7), dtype, 0)
    sizes = torch.logspace(6, 20, 8, dtype=torch.float64)[:, None, None]
    for t in range(20):
        g = (x * sizes).to(dtype) + gaussian(x.shape, dtype, t)
        steps, _ = in_pieces(x, g, 1.0, policy)
        x = joined(steps)
        distance = reference.each(reference.spectral_distance, x).max()
        assert distance <= bound + 100 * eps(dtype)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("landing", stiefel.POLICIES)
def test_the_finiteness_probe_is_the_same_for_all_pieces_and_finite_only_if_they_all_are(landing, normalized):
    x = orthonormal((3, 2, 7), torch.float64, 0)
    g = gradient(x, 1)
    g[1, 0, -1] = torch.nan
    steps, probes = in_pieces(x, g, 0.1, stiefel.policy(landing), normalized)
    assert torch.isfinite(joined(steps)).all(-1).all(-1).tolist() == [True, False, True]
    for probe in probes:
        assert torch.isfinite(probe).tolist() == [True, False, True]
        assert torch.equal(probe.nan_to_num(), probes[0].nan_to_num())


def test_the_finiteness_probe_of_a_step_is_the_size_of_q_times_that_of_m():
    x = orthonormal((3, 2, 7), torch.complex128, 0)
    g = gradient(x, 1, 1.0, "tangent")
    _, (probe, *_) = in_pieces(x, g, 0.5, stiefel.policy("half"))
    m = x - 0.5 * stiefel.relative_gradient(x, g)
    expected = torch.linalg.matrix_norm(0.5 * stiefel.defect(m)) * torch.linalg.matrix_norm(m)
    torch.testing.assert_close(probe, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("metric", stiefel.METRICS)
def test_a_tangent_leap_is_along_the_riemannian_gradient(metric, dtype):
    x, g = orthonormal((3, 4, 6), dtype, 0), gaussian((3, 4, 6), dtype, 1)
    factor = torch.tensor([0.1, 0.2, 0.3], dtype=x.real.dtype)
    expected = x - factor[:, None, None] * stiefel.tangent(x, g, metric)
    torch.testing.assert_close(stiefel.tangent_leap(x, g, x @ g.mH, factor[:, None, None], metric), expected)
