"""The directions of the base optimizers are those of the reference and of torch.optim."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim._muon import _zeropower_via_newtonschulz

import orthoptim
from orthoptim.engine.step import find_direction
from tests import reference
from tests.strategies import DTYPES, REAL, dtypes, eps, gaussian, log_uniform, orthonormal, seeds, shapes

STEPS = 10
BASES = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("VAdam", {}),
    ("VAdam", {"betas": (0.0, 0.5), "eps": 1e-3}),
    ("Adam", {}),
    ("Adam", {"betas": (0.0, 0.5), "eps": 1e-3}),
    ("Muon", {}),
    ("Muon", {"momentum": 0.5, "nesterov": False, "steps": 3}),
]


def directions(base, gradients):
    """The direction at each step for gradients (T, B, p, n), and the states in between."""
    x = torch.zeros_like(gradients[0])
    empty = {"entries": x, "moduli": x.real.clone(), "matrices": x.real[:, 0, 0].clone()}
    state = {name: empty[kind] for name, kind in base.buffers(base.hyperparameters).items()}
    results, states = [], []
    for t, grad in enumerate(gradients, 1):
        steps = torch.full((len(x),), t, dtype=x.real.dtype)
        g, state = find_direction(base, x, grad, state, steps, **base.hyperparameters)
        results.append(g.whole())
        states.append(state)
    return torch.stack(results), states


def relative_error(a, b):
    """‖A − B‖_F/‖B‖_F, the worst of a batch (T, B, p, n); ‖B‖ is that of the longest of its T directions."""
    a, b = reference.double(a), reference.double(b)
    return (np.linalg.norm(a - b, axis=(-2, -1)) / np.linalg.norm(b, axis=(-2, -1)).max(0)).max()


@pytest.mark.parametrize(("name", "options"), BASES, ids=str)
@settings(max_examples=20)
@given(shape=shapes(min_rank=1, max_rank=1, max_n=8), dtype=dtypes, seed=seeds, size=log_uniform(-3, 3))
def test_every_base_equals_the_reference(name, options, shape, dtype, seed, size):
    gradients = size * gaussian((STEPS, *shape), dtype, seed)
    found, _ = directions(getattr(orthoptim, name)(**options), gradients)
    assert found.dtype == dtype
    expected = []
    for i in range(shape[0]):
        base = getattr(reference, name)(**options)
        expected.append([base(g) for g in reference.double(gradients[:, i])])
    # Muon's quintic multiplies small singular values, and with them rounding, by up to 3.4⁵
    tolerance = (500 if name == "Muon" else 10) * eps(dtype)
    assert relative_error(found, np.stack(expected, 1)) <= tolerance


@pytest.mark.parametrize(("name", "options"), BASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_matrix_of_a_batch_is_treated_by_itself(name, options, dtype):
    sizes = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64).to(dtype.to_real())[:, None, None]
    gradients = sizes * gaussian((STEPS, 3, 4, 6), dtype, 0)
    base = getattr(orthoptim, name)(**options)
    together, _ = directions(base, gradients)
    alone = torch.cat([directions(base, gradients[:, i : i + 1])[0] for i in range(3)], 1)
    assert relative_error(together, alone) <= 100 * eps(dtype)


@pytest.mark.parametrize(("name", "options"), BASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_direction_changes_none_of_its_arguments(name, options, dtype):
    base = getattr(orthoptim, name)(**options)
    _, states = directions(base, gaussian((2, 3, 4, 6), dtype, 0))
    x, grad, t = orthonormal((3, 4, 6), dtype, 1), gaussian((3, 4, 6), dtype, 2), torch.full((3,), 3.0)
    arguments = [x, grad, t, *states[-1].values()]
    before = [argument.clone() for argument in arguments]
    find_direction(base, x, grad, states[-1], t, **base.hyperparameters)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


@pytest.mark.parametrize(("name", "options"), BASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_state_has_the_shape_and_the_dtype_that_are_announced(name, options, dtype):
    base = getattr(orthoptim, name)(**options)
    kinds = base.buffers(base.hyperparameters)
    _, states = directions(base, gaussian((2, 3, 4, 6), dtype, 0))
    expected = {
        "entries": ((3, 4, 6), dtype),
        "moduli": ((3, 4, 6), dtype.to_real()),
        "matrices": ((3,), dtype.to_real()),
    }
    assert {key: (tuple(value.shape), value.dtype) for key, value in states[-1].items()} == {
        key: expected[kind] for key, kind in kinds.items()
    }


@pytest.mark.parametrize(("name", "options"), [*BASES, ("BB", {}), ("CG", {}), ("LBFGS", {})], ids=str)
@given(dtype=dtypes, bad=st.sampled_from([torch.nan, torch.inf, -torch.inf]), place=st.integers(0, 23))
def test_a_gradient_that_is_not_finite_has_no_finite_direction(name, options, dtype, bad, place):
    """That is how the step of its matrix is found and left out; its neighbours' are as ever."""
    base = getattr(orthoptim, name)(**options)
    gradients = gaussian((2, 3, 4, 6), dtype, 0)
    gradients[1, 1].view(-1)[place] = bad
    found, _ = directions(base, gradients)
    assert torch.equal(torch.isfinite(found[1].sum((-2, -1))), torch.tensor([True, False, True]))


@pytest.mark.parametrize(("name", "options"), BASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_zero_gradient_has_a_zero_direction(name, options, dtype):
    found, _ = directions(getattr(orthoptim, name)(**options), torch.zeros(3, 2, 3, 4, dtype=dtype))
    assert torch.equal(found, torch.zeros_like(found))


# Against torch.optim: a parameter set back to zero before every step is displaced by minus the direction at lr 1.


def displacements(optimizer, gradients, **options):
    param = torch.zeros_like(gradients[0], requires_grad=True)
    opt = optimizer([param], lr=1.0, **options)
    for grad in gradients:
        param.data.zero_()
        param.grad = grad.clone()
        opt.step()
        yield -param.detach(), opt.state[param]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3},
        {"momentum": 0.9, "dampening": 1.0},
        {"momentum": 0.9, "dampening": -1.0},
        {"momentum": 0.7, "nesterov": True},
    ],
    ids=str,
)
def test_sgd_is_torch_s_sgd_bit_for_bit(options, foreach, dtype):
    gradients = gaussian((STEPS, 3, 4, 6), dtype, 0)
    found, states = directions(orthoptim.SGD(**options), gradients)
    for t, (expected, state) in enumerate(displacements(torch.optim.SGD, gradients, foreach=foreach, **options)):
        assert torch.equal(found[t], expected)
        if options:
            assert torch.equal(states[t]["momentum_buffer"], state["momentum_buffer"])


@pytest.mark.parametrize("dtype", REAL)
@given(
    seed=seeds,
    betas=st.tuples(st.floats(0.5, 0.99), st.floats(0.5, 0.9999)),
    epsilon=log_uniform(-10, -2),
    size=log_uniform(-3, 3),
)
def test_adam_is_torch_s_adam_for_real_matrices(dtype, seed, betas, epsilon, size):
    gradients = size * gaussian((STEPS, 3, 4, 6), dtype, seed)
    found, _ = directions(orthoptim.Adam(betas, epsilon), gradients)
    expected = torch.stack([d for d, _ in displacements(torch.optim.Adam, gradients, betas=betas, eps=epsilon)])
    assert relative_error(found, expected) <= (1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_the_complex_moments_of_adam_and_vadam_do_not_depend_on_the_phase(dtype):
    gradients = gaussian((STEPS, 3, 4, 6), dtype, 0)
    phase = torch.tensor(0.6 + 0.8j, dtype=dtype)
    for base in (orthoptim.Adam(), orthoptim.VAdam()):
        found, turned = directions(base, gradients)[0], directions(base, phase * gradients)[0]
        assert relative_error(turned, reference.double(phase * found)) <= 10 * eps(dtype)


@given(shape=shapes(max_rank=0), seed=seeds)
def test_the_first_direction_of_vadam_has_unit_norm(shape, seed):
    found, _ = directions(orthoptim.VAdam(eps=0), gaussian((1, 5, *shape), torch.float64, seed))
    np.testing.assert_allclose(torch.linalg.matrix_norm(found), 1, rtol=1e-14)


@pytest.mark.parametrize("size", [1.0, 1e-15, 1e-18, 1e-19, 1e-20, 1e-25, 1e-30, 1e-38, 1e-44, 0.0])
def test_the_direction_of_vadam_is_not_long_where_squares_underflow(size):
    found, _ = directions(orthoptim.VAdam(eps=0), size * gaussian((3, 5, 4, 6), torch.float32, 0))
    assert float(torch.linalg.matrix_norm(found[0].double()).max()) <= 1 + 1e-5
    assert float(torch.linalg.matrix_norm(found.double()).max()) <= 1.5


@pytest.mark.parametrize("shape", [(4, 16), (16, 32), (8, 64)])
def test_muon_is_torch_s_muon_up_to_its_bfloat16(shape):
    g = gaussian((1, 5, *shape), torch.float32, 0)
    found, _ = directions(orthoptim.Muon(momentum=0), g)
    quintic = (3.4445, -4.7750, 2.0315)
    expected = torch.stack([_zeropower_via_newtonschulz(one, quintic, 5, 1e-7).float() for one in g[0]])[None]
    assert relative_error(found, expected) <= 3e-2


@given(shape=shapes(min_rank=1, max_rank=1), dtype=dtypes, seed=seeds)
def test_muon_brings_the_singular_values_of_well_conditioned_matrices_near_one(shape, dtype, seed):
    g = orthonormal(shape, dtype, seed) + 0.1 * gaussian(shape, dtype, seed + 1) / shape[-1]
    found, _ = directions(orthoptim.Muon(), g[None])
    singular = torch.linalg.svdvals(found)
    assert (singular > 0.6).all()
    assert (singular < 1.3).all()


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1e15, 1e30])
def test_the_direction_of_muon_does_not_depend_on_the_size_of_the_gradient(size):
    g = gaussian((1, 5, 4, 6), torch.float32, 0)
    expected, _ = directions(orthoptim.Muon(), g)
    found, _ = directions(orthoptim.Muon(), size * g)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


PLAIN = [orthoptim.SGD(momentum=0.5), orthoptim.VAdam(), orthoptim.Adam(), orthoptim.Muon()]


@pytest.mark.parametrize("base", PLAIN, ids=repr)
def test_a_base_is_linear_if_it_says_so(base):
    a, b = (gaussian((3, 2, 4, 6), torch.float64, seed) for seed in (0, 1))
    (of_a, _), (of_b, _), (of_both, _) = (directions(base, g) for g in (a, b, a + b))
    assert torch.allclose(of_a + of_b, of_both, atol=1e-9) == base.linear


@pytest.mark.parametrize("base", PLAIN, ids=repr)
def test_directions_have_a_norm_of_order_one_if_their_base_says_so(base):
    found, _ = directions(base, 1e3 * gaussian((1, 2, 16, 32), torch.float64, 0))
    assert bool((torch.linalg.matrix_norm(found) < 2).all()) == base.normalized


@pytest.mark.parametrize("base", [orthoptim.VAdam(), orthoptim.Adam()], ids=repr)
def test_a_square_that_overflows_does_not_stay_infinite(base):
    sizes = torch.tensor([1.0, 1e25, 1.0, 1.0])[:, None, None, None]
    found, states = directions(base, sizes * gaussian((4, 2, 4, 6), torch.float32, 0))
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(value).all() for state in states for value in state.values())
