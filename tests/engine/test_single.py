"""A single matrix on a CPU, whose numbers are Python's. The oracle is the step of a batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim import stiefel
from tests.strategies import dtypes, gradient, log_uniform, orthonormal, seeds

SHAPES = [(1, 6, 6), (1, 5, 9), (1, 4, 30)]
BASES = [oo.VAdam(), oo.VAdam(betas=(0.0, 0.5), eps=0.0), oo.SGD(), oo.SGD(momentum=0.9)]
TOLERANCE = {torch.float32: 2e-6, torch.complex64: 2e-6, torch.float64: 1e-13, torch.complex128: 1e-13}


@pytest.mark.parametrize("form", ["direct-n", "direct-p"])
@pytest.mark.parametrize("landing", stiefel.POLICIES)
@settings(max_examples=20)
@given(
    shape=st.sampled_from(SHAPES),
    dtype=dtypes,
    seed=seeds,
    norm=log_uniform(-3, 3),
    lr=st.sampled_from([0.3, -0.3, 0.0]),
    far=st.sampled_from([1.0, 1.0, 30.0]),
    normalized=st.booleans(),
)
def test_a_step_on_the_host_is_the_step_of_a_batch(form, landing, shape, dtype, seed, norm, lr, far, normalized):
    x = far * orthonormal(shape, dtype, seed)
    g, scale, policy = gradient(x, seed + 1, 1.0), norm if normalized else None, stiefel.policy(landing)
    factor = None if scale is None else torch.tensor([scale], dtype=x.real.dtype)
    batch = stiefel.pogo_step(x, g, lr, policy, form, scale=factor, normalized=normalized)
    alone = stiefel.pogo_step(x, g, lr, policy, form, scale=scale, normalized=normalized, on_host=True)
    size = float(batch.x.abs().max())
    torch.testing.assert_close(alone.x, batch.x, rtol=0, atol=TOLERANCE[dtype] * max(1.0, size))
    assert (None if batch.clipped is None else bool(batch.clipped)) is alone.clipped


@given(
    dtype=dtypes,
    seed=seeds,
    base=st.sampled_from([base for base in BASES if base.name == "vadam"]),
    sizes=st.lists(log_uniform(-30, 30), min_size=1, max_size=4),
)
def test_the_scale_of_one_matrix_is_that_of_a_batch(dtype, seed, base, sizes):
    state = {"exp_avg_sq": torch.zeros(1, dtype=dtype.to_real())}
    for t, size in enumerate(sizes, 1):
        grad, step = gradient(orthonormal((1, 3, 5), dtype, seed), seed + t, size), torch.tensor([float(t)])
        given = base.statistic(grad), state, step.to(state["exp_avg_sq"].dtype)
        scale, of_batch = base.scale(*given, **base.hyperparameters)
        number, of_one = base.scale_on_host(grad, state, step, **base.hyperparameters)
        if 1e-15 < size < 1e15:  # squares beyond leave the range of float32, which Python's do not
            torch.testing.assert_close(torch.tensor([number], dtype=scale.dtype), scale, rtol=1e-5, atol=0)
            torch.testing.assert_close(of_one, of_batch, rtol=1e-5, atol=0)
        assert math.isfinite(number)
        state = of_one


@pytest.mark.parametrize("base", BASES, ids=repr)
@pytest.mark.parametrize("landing", ["safe", "strict", "half"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
def test_a_matrix_steps_alone_as_among_others(base, landing, dtype):
    """Also where its gradient is not finite, where its leap is clipped, and where it was written far away."""
    alone = torch.nn.Parameter(orthonormal((6, 6), dtype if dtype != torch.bfloat16 else torch.float32, 0).to(dtype))
    batch = torch.nn.Parameter(torch.stack([alone.detach()] * 3))
    one, many = (oo.POGO([param], 0.1, base, landing=landing) for param in (alone, batch))
    guaranteed = landing != "half"
    for t, size in enumerate([1.0, 1e3 if guaranteed else 2.0, math.nan, 1.0, math.inf, 0.0, 1e-25, 1.0]):
        if t == 3 and guaranteed:
            with torch.no_grad():
                alone.mul_(3)
                batch.mul_(3)
        grad = gradient(alone.detach().cfloat() if dtype.is_complex else alone.detach().float(), t, 1.0) * size
        alone.grad, batch.grad = grad.to(dtype), torch.stack([grad] * 3).to(dtype)
        for opt in (one, many):
            opt.step()
        atol = 1e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(alone.detach(), batch.detach()[1], rtol=0, atol=atol)
        for name, value in one.state[alone].items():
            other = many.state[batch][name]
            same = other if other.ndim == 0 else other[1] if other.shape != (3,) else other[1].reshape(value.shape)
            torch.testing.assert_close(value, same, rtol=1e-4, atol=1e-6)
