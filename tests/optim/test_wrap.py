"""wrap: any torch optimizer, made orthogonal."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import orthoptim as oo
from tests.conformance.methods import clones, point, set_gradients
from tests.optim.wrapping import OPTIMIZERS, Prodigy, build


def test_all_of_torch_is_here():
    assert {"SGD", "Adam", "AdamW", "NAdam", "RAdam", "LBFGS", "Muon", "Adafactor", "ASGD"} <= OPTIMIZERS.keys()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_ends_on_the_manifold(name):
    constrained, free = point(6, 6), nn.Parameter(torch.randn(3, 3))
    target = point(6, 6, seed=3).detach()
    opt = oo.wrap(build(name, [constrained, free]), [constrained], landing="strict")

    def closure():
        opt.zero_grad()
        loss = (constrained - target).square().sum() + free.square().sum()
        loss.backward()
        return loss

    first = float(closure())
    for _ in range(200):
        last = opt.step(closure)
    assert oo.distance(constrained) <= 1e-5
    assert float(last) < first


def test_wrapped_sgd_is_pogo_with_sgd():
    options = {"momentum": 0.9, "nesterov": True}
    one, two = (point(3, 4, 6, dtype=torch.float64) for _ in range(2))
    wrapped = oo.wrap(torch.optim.SGD([one], lr=0.05, **options), [one])
    pogo = oo.POGO([two], 0.05, oo.SGD(**options))
    for t in range(20):
        set_gradients([one], t)
        two.grad = one.grad.clone()
        wrapped.step()
        pogo.step()
    torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_unconstrained_parameters_keep_the_step_they_were_given():
    constrained, free = point(4, 6), nn.Parameter(torch.randn(5))
    alone = clones([free])
    opt = oo.wrap(torch.optim.NAdam([constrained, free], lr=0.01), [constrained])
    reference = torch.optim.NAdam(alone, lr=0.01)
    for t in range(5):
        set_gradients([free, constrained], t)
        set_gradients(alone, t)
        opt.step()
        reference.step()
    assert torch.equal(free, alone[0])


def test_patterns_and_views():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 8))
    patterns = {"0.weight": {"view": "filters"}, "2.weight": "matrix"}
    oo.orthogonalize_(model, patterns)
    opt = oo.wrap(torch.optim.Adam(model.parameters(), lr=1e-2), patterns, model=model)
    for _ in range(10):
        opt.zero_grad()
        model(torch.randn(2, 3, 4, 4)).square().sum().backward()
        opt.step()
    assert oo.distance(model[0].weight, view="filters") < 1e-4
    assert oo.distance(model[2].weight) < 1e-4
    assert [entry.matrices for entry in opt.drift()] == [1, 1]


def test_it_is_an_optimizer_schedulers_see_the_inner_groups():
    param = point(4, 6)
    inner = torch.optim.Adam([param], lr=0.1)
    opt = oo.wrap(inner, [param])
    assert isinstance(opt, torch.optim.Optimizer)
    assert opt.param_groups is inner.param_groups
    schedule = lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=10)
    rates = []
    for t in range(5):
        set_gradients([param], t)
        opt.step()
        schedule.step()
        rates.append(inner.param_groups[0]["lr"])
    assert len(set(rates)) == 5


def test_the_gradient_is_left_as_it_was():
    param, idle = point(4, 6), point(4, 6, seed=1)
    opt = oo.wrap(torch.optim.Adam([param, idle]), [param, idle])
    set_gradients([param])
    grad = param.grad
    opt.step()
    assert param.grad is grad
    assert idle.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_resume_equals_never_having_stopped(dtype):
    params = [point(4, 6, dtype=dtype), nn.Parameter(torch.randn(3))]

    def make(values):
        return oo.wrap(torch.optim.AdamW(values, lr=0.05), values[:1])

    opt = make(params)
    for t in range(3):
        set_gradients(params, t)
        opt.step()
    file = io.BytesIO()
    torch.save([opt.state_dict(), [p.detach() for p in params]], file)
    file.seek(0)
    state, values = torch.load(file, weights_only=True)
    others = [nn.Parameter(value) for value in values]
    other = make(others)
    other.load_state_dict(state)
    for t in range(3, 6):
        set_gradients(params, t)
        set_gradients(others, t)
        opt.step()
        other.step()
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))], ids=["copy", "pickle"])
def test_a_copy_goes_on_alike(copier):
    param = point(4, 6)
    opt = oo.wrap(torch.optim.Adam([param], lr=0.05), [param])
    set_gradients([param])
    opt.step()
    twin = copier(opt)
    (other,) = twin.param_groups[0]["params"]
    for t in range(1, 4):
        set_gradients([param], t)
        set_gradients([other], t)
        opt.step()
        twin.step()
    assert torch.equal(param, other)
    assert other is not param


def test_a_displacement_that_is_not_finite_freezes_its_matrix():
    param = point(2, 4, 6)
    opt = oo.wrap(torch.optim.SGD([param], lr=0.1), [param])
    set_gradients([param])
    param.grad[0, 1, 2] = torch.nan
    before = param.detach().clone()
    opt.step()
    assert torch.equal(param[0], before[0])
    assert not torch.equal(param[1], before[1])
    assert opt.drift()[0].skipped == 1


def test_add_param_group_goes_to_the_inner_optimizer():
    param, free = point(4, 6), nn.Parameter(torch.ones(3))
    opt = oo.wrap(torch.optim.Adam([param], lr=0.1), [param])
    opt.add_param_group({"params": [free], "lr": 0.5})
    set_gradients([param, free])
    opt.step()
    assert not torch.equal(free, torch.ones(3))


def test_the_defaults_of_the_inner_optimizer_stay_its_own():
    param = point(4, 6)
    inner = Prodigy([param])
    before = dict(inner.defaults)
    oo.wrap(inner, [param])
    assert inner.defaults == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("with_closure", [False, True])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ("LBFGS", "Adafactor", "Muon")])
def test_a_gradient_that_is_not_finite_does_not_enter_the_state_of_the_inner_optimizer(name, with_closure, bad):
    """It stayed there, and every later step of its matrix was skipped."""
    one, two = (point(3, 4, 6) for _ in range(2))
    runs = [(param, oo.wrap(build(name, [param]), [param])) for param in (one, two)]

    def run(param, opt, grad):
        param.grad = grad.clone()
        opt.step((lambda: 0.0) if with_closure else None)

    for t in range(5):
        grad = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(t))
        before = one.detach().clone()
        for param, opt in runs:
            poisoned = grad.clone()
            if t == 2:
                poisoned[1, 0, 0] = bad if param is one else 0.5
            run(param, opt, poisoned)
        assert torch.equal(one[[0, 2]], two[[0, 2]])
        assert torch.equal(one[1], before[1]) == (t == 2)
        if t == 2:
            assert not torch.isfinite(one.grad[1]).all()  # what the user gave is still there
    opt = runs[0][1]
    assert opt.drift()[0].skipped == 1
    assert all(torch.isfinite(value).all() for value in opt.inner.state[one].values() if torch.is_tensor(value))


def test_gradients_of_parts_that_are_not_finite_are_hidden_from_the_inner_optimizer():
    view = oo.View("matrix", split=(4, 2, 2))
    param = nn.Parameter(oo.orthogonalize_(torch.empty(8, 6), view=view, init="random"))
    before = param.detach().clone()
    opt = oo.wrap(torch.optim.Adam([param], lr=0.1), [{"params": [param], "view": view}])
    param.grad = torch.randn(8, 6)
    param.grad[5, 2] = float("nan")
    opt.step()
    assert (param != before).any(1).tolist() == [True] * 4 + [False] * 2 + [True] * 2
    assert torch.isfinite(opt.inner.state[param]["exp_avg"]).all()
    assert opt.drift()[0].skipped == 1
