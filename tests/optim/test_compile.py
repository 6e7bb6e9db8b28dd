"""compile=True: the same step, compiled once for each kind of matrices."""

import pytest
import torch
from torch._dynamo.utils import counters
from torch.optim import lr_scheduler

import orthoptim as oo
from orthoptim import stiefel
from orthoptim.optim import compiling
from orthoptim.stiefel import steps as forms
from tests.conformance.methods import clones, point, set_gradients, steps


def test_compiled_equals_eager_and_a_changing_lr_compiles_nothing_again():
    params = [point(40, 3, 3), point(30, 2, 4, seed=1), point(2, 6, 6, seed=2), point(4, 40, seed=3)]
    others = clones(params)
    opt, eager = oo.POGO(params, 0.1, compile=True), oo.POGO(others, 0.1)
    schedules = [lr_scheduler.StepLR(o, 1, gamma=0.7) for o in (opt, eager)]
    torch._dynamo.reset()
    counters.clear()
    for t in range(4):
        steps(opt, params, 1, t)
        steps(eager, others, 1, t)
        for schedule in schedules:
            schedule.step()
    for one, two in zip(params, others, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=2e-6)
    assert counters["stats"]["unique_graphs"] == len(params)  # as many kinds of matrices
    assert opt.drift()[0].skipped == 0


def test_more_kinds_than_the_compilers_limit(monkeypatch):
    """torch.compile makes eight versions of one function and then gives up; each kind has a function of its own."""
    monkeypatch.setattr(torch, "compile", _with_backend(torch.compile, "eager"))
    params = [point(2, n, seed=n) for n in range(2, 13)]
    opt = oo.POGO(params, 0.1, compile=True)
    torch._dynamo.reset()
    counters.clear()
    for t in range(3):
        steps(opt, params, 1, t)
    assert counters["stats"]["unique_graphs"] == len(params)


def _with_backend(compile, backend):
    return lambda function, **options: compile(function, backend=backend, **options)


def test_without_a_compiler_it_warns_once_and_steps(monkeypatch):
    def broken(function, **options):
        def fail(*args):
            raise RuntimeError("no C++ compiler found\nlook here and there")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(compiling, "_warned", False)
    params, others = [point(4, 6), point(3, 3, seed=1)], [point(4, 6), point(3, 3, seed=1)]
    opt, eager = oo.POGO(params, 0.1, compile=True), oo.POGO(others, 0.1)
    with pytest.warns(UserWarning, match="torch.compile failed: no C") as caught:
        steps(opt, params, 3)
    assert len(caught) == 1
    steps(eager, others, 3)
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)


def test_what_the_update_raises_is_raised(monkeypatch):
    monkeypatch.setattr(torch, "compile", _with_backend(torch.compile, "eager"))

    def failing(*args):
        raise MemoryError("of the update itself")

    monkeypatch.setattr(oo.POGO, "update", staticmethod(failing))
    param = point(4, 6)
    opt = oo.POGO([param], 0.1, compile=True)
    before = param.detach().clone()
    set_gradients([param])
    with pytest.raises(MemoryError, match="of the update itself"):
        opt.step()
    assert torch.equal(param, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 3), (3, 3), (4, 4)])
def test_the_unrolled_form_is_the_tiny_one(shape, landing, dtype):
    x = point(5, *shape, dtype=dtype).detach()
    g = 3 * torch.randn(5, *shape, dtype=dtype)
    size = stiefel.max_entry(g)
    leap = forms.Leap(x, g, 0.4 * size, (1 / size)[:, None, None])
    policy = stiefel.policy(landing)
    one, two = forms.tiny(leap, policy), forms._unrolled(leap, policy)
    torch.testing.assert_close(one.x, two.x, rtol=0, atol=1e-13)
    assert (one.clipped is None) == (two.clipped is None)
    if one.clipped is not None:
        assert torch.equal(one.clipped, two.clipped)
