"""Conjugate gradients and limited-memory BFGS as bases: against dense formulas, and on problems with known optima."""

import pytest
import torch
from hypothesis import given, settings

import orthoptim as oo
from orthoptim import stiefel
from orthoptim.base.secant import leap_along
from tests.conformance.methods import point
from tests.problems import iterations, pca, procrustes
from tests.strategies import dtypes, gaussian, orthonormal, seeds, shapes

SOLVERS = {"cg": oo.CG(), "lbfgs": oo.LBFGS(history_size=4)}
every_solver = pytest.mark.parametrize("base", SOLVERS.values(), ids=SOLVERS)


def dot(a, b):
    return float((a.conj() * b).real.sum())


def as_vector(a):
    return torch.view_as_real(a).flatten() if a.is_complex() else a.flatten()


def dense_bfgs(pairs, gradient):
    """HT by the formula, with H a matrix over the real entries."""
    s, y = pairs[-1]
    h = torch.eye(len(s), dtype=s.dtype) * (s @ y) / (y @ y)
    for s, y in pairs:
        v = torch.eye(len(s), dtype=s.dtype) - torch.outer(y, s) / (s @ y)
        h = v.T @ h @ v + torch.outer(s, s) / (s @ y)
    return h @ as_vector(gradient)


def hager_zhang(s, y, t):
    weight = dot(y, t) / dot(s, y) - 2 * dot(y, y) * dot(s, t) / dot(s, y) ** 2
    d = t - max(weight, 0.0) * s
    return dot(t, d) / dot(d, d) * dot(s, s) / dot(s, y) * d


@given(shape=shapes(min_rank=1, max_rank=1, max_n=8), dtype=dtypes, seed=seeds)
def test_the_leap_of_pogo_is_the_tangent_part_of_the_direction(shape, dtype, seed):
    x, d = orthonormal(shape, dtype, seed), gaussian(shape, dtype, seed + 1)
    leap = stiefel.relative_gradient(x, leap_along(x, d, torch.ones(shape[0], dtype=dtype.to_real())).whole())
    tolerance = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(leap, stiefel.tangent(x, d), rtol=tolerance, atol=tolerance)


@every_solver
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_directions_are_those_of_the_formulas(base, dtype):
    """The gradients are those of a convex quadratic, so that all pairs are usable."""
    size = 4  # of the history
    x = point(3, 5, dtype=dtype)
    a = torch.linspace(1, 9, 5, dtype=torch.float64)
    target = torch.randn(3, 5, dtype=dtype)
    opt = oo.POGO([x], base=base)
    pairs, last, checked = [], None, 0
    for _ in range(9):
        grad = 3 * (x.detach() - 3 * target) * a
        tangent = stiefel.tangent(x.detach(), grad)
        if last is not None:
            s, y = x.detach() - last[0], tangent - last[1]
            pairs.append((s, y))
        usable = bool(pairs) and all(dot(s, y) > 1e-8 * (dot(s, s) * dot(y, y)) ** 0.5 for s, y in pairs[-size:])
        if usable:
            state = {name: value[None] if value.ndim else value.view(1) for name, value in opt.state[x].items()}
            t = torch.full((1,), 10.0, dtype=torch.float64)
            found, _ = base.direction(x.detach()[None], grad[None], state, t, **base.hyperparameters)
            leap = stiefel.relative_gradient(x.detach(), found.whole()[0])
            if isinstance(base, oo.CG):
                expected = hager_zhang(*pairs[-1], tangent)
            else:
                vectors = [(as_vector(s), as_vector(y)) for s, y in pairs[-size:]]
                expected = dense_bfgs(vectors, tangent)
                expected = (
                    expected.reshape(tangent.shape)
                    if not x.is_complex()
                    else torch.view_as_complex(expected.reshape(*tangent.shape, 2))
                )
            torch.testing.assert_close(leap, stiefel.tangent(x.detach(), expected), rtol=1e-6, atol=1e-8)
            checked += 1
        last = x.detach().clone(), tangent
        x.grad = grad
        opt.step()
    assert checked >= 4


@every_solver
@settings(max_examples=25)
@given(shape=shapes(min_rank=1, max_rank=1, max_n=8), dtype=dtypes, seed=seeds)
def test_every_direction_descends_whatever_the_history(base, shape, dtype, seed):
    kinds = base.buffers(base.hyperparameters)
    x = orthonormal(shape, dtype, seed)
    state = {
        name: torch.zeros(shape, dtype=dtype) if kind == "entries" else torch.zeros(shape[0], dtype=dtype.to_real())
        for name, kind in kinds.items()
    }
    for t in range(1, 7):
        grad = gaussian(shape, dtype, seed + t)
        steps = torch.full((shape[0],), float(t), dtype=dtype.to_real())
        found, state = base.direction(x, grad, state, steps, **base.hyperparameters)
        leap = stiefel.relative_gradient(x, found.whole())
        size = stiefel.norm(stiefel.tangent(x, grad)) * stiefel.norm(leap)
        tolerance = 100 * torch.finfo(dtype).eps * stiefel.norm(grad) * stiefel.norm(found.whole())
        assert bool((stiefel.inner(grad, leap) >= 0 * size - tolerance).all())
        x = orthonormal(shape, dtype, seed + 10 + t)


@pytest.mark.parametrize(
    ("problem", "limit"), [(pca(30, 40, "code", 0), 120), (pca(30, 40, "paper", 0), 300), (procrustes(30, 0), 400)]
)
@pytest.mark.parametrize("base", [oo.CG(), oo.LBFGS()], ids=repr)
def test_they_reach_ten_digits(problem, limit, base):
    assert iterations(problem, lambda x: oo.POGO(x, base=base), 2 * limit, 1e-10) is not None


def test_bfgs_takes_fewer_steps_than_barzilai_borwein():
    for problem in (pca(30, 40, "paper", 0), pca(30, 40, "paper", 1)):
        counts = [
            iterations(problem, lambda x, b=base: oo.POGO(x, base=b), 900, 1e-10) for base in (oo.LBFGS(), oo.BB())
        ]
        assert counts[0] < counts[1]


@every_solver
def test_a_batch_is_stepped_as_its_matrices_alone(base):
    together = point(3, 4, 6, dtype=torch.float64)
    alone = [torch.nn.Parameter(x.clone()) for x in together.detach()]
    opts = [oo.POGO([together], base=base), *(oo.POGO([x], base=base) for x in alone)]
    a = torch.linspace(1, 9, 6, dtype=torch.float64)
    for _ in range(6):
        together.grad = -together.detach() * a
        for x in alone:
            x.grad = -x.detach() * a
        for opt in opts:
            opt.step()
    torch.testing.assert_close(together.detach(), torch.stack([x.detach() for x in alone]), rtol=0, atol=1e-10)


@every_solver
def test_stationary_points_stay_and_are_left(base):
    param = torch.nn.Parameter(torch.eye(3, 5))
    opt = oo.POGO([param], base=base)
    for _ in range(3):
        param.grad = param.detach().clone()
        opt.step()
    torch.testing.assert_close(param.detach(), torch.eye(3, 5))
    param.grad = torch.ones(3, 5)
    opt.step()
    assert float((param.detach() - torch.eye(3, 5)).abs().max()) > 0.01
    assert opt.drift()[0].skipped == 0


@every_solver
@pytest.mark.parametrize("option", [{"landing": "half"}, {"matmul_precision": "mixed"}])
def test_what_their_leaps_do_not_allow_is_refused(base, option):
    with pytest.raises(ValueError, match=type(base).__name__):
        oo.POGO([point(4, 6)], base=base, **option)


@pytest.mark.parametrize("size", [0, 2.0, True])
def test_a_history_has_a_length(size):
    with pytest.raises(ValueError, match="history_size"):
        oo.LBFGS(history_size=size)
