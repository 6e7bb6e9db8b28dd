"""wrap: any torch optimizer, made orthogonal."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import orthoptim as oo
from tests.conformance.methods import clones, point, set_gradients

# every optimizer of torch that takes dense real parameters
OPTIMIZERS = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
}
RATES = {"LBFGS": 0.1, "Adadelta": 1.0, "Rprop": 0.01, "Muon": 0.02}


def build(name, params):
    return OPTIMIZERS[name](params, lr=RATES.get(name, 0.01))


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


def test_hooks_fire_once():
    param = point(4, 6)
    opt = oo.wrap(torch.optim.Adam([param]), [param])
    fired = []
    opt.register_step_pre_hook(lambda *_: fired.append("pre"))
    opt.register_step_post_hook(lambda *_: fired.append("post"))
    opt.register_state_dict_pre_hook(lambda _: fired.append("save"))
    opt.register_state_dict_post_hook(lambda _, state_dict: fired.append("saved"))
    opt.register_load_state_dict_pre_hook(lambda _, state_dict: fired.append("load"))
    opt.register_load_state_dict_post_hook(lambda _: fired.append("loaded"))
    set_gradients([param])
    opt.step()
    opt.load_state_dict(opt.state_dict())
    assert fired == ["pre", "post", "save", "saved", "load", "loaded"]


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


class ScheduleFree(torch.optim.Optimizer):
    """A schedule-free-like optimizer: the parameter is an interpolation of a fast iterate and its average."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0})
        self.mode = "train"

    def train(self):
        self.mode = "train"

    def eval(self):
        self.mode = "eval"

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                z = self.state[p].setdefault("z", p.clone())
                x = self.state[p].setdefault("x", p.clone())
                z.sub_(p.grad, alpha=group["lr"])
                x.lerp_(z, 1 / group["k"])
                p.copy_(z.lerp(x, group["beta"]))


class Prodigy(torch.optim.Optimizer):
    """A Prodigy-like optimizer: the step length grows with the distance travelled, kept in the group."""

    def __init__(self, params, lr=1.0):
        super().__init__(params, {"lr": lr, "d": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            moved = 0.0
            for p in group["params"]:
                start = self.state[p].setdefault("start", p.clone())
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 0.1)
                p.sub_(m / (m.norm() + 1e-8), alpha=group["lr"] * group["d"])
                moved = max(moved, float((p - start).norm()))
            group["d"] = max(group["d"], 0.1 * moved)


@pytest.mark.parametrize("cls", [ScheduleFree, Prodigy])
def test_third_party_optimizers(cls):
    param, target = point(5, 5), point(5, 5, seed=2).detach()
    opt = oo.wrap(cls([param]), [param], landing="strict")
    start = float((param - target).square().sum())
    for _ in range(100):
        opt.zero_grad()
        (param - target).square().sum().backward()
        opt.step()
    assert oo.distance(param) <= 1e-5
    assert float((param - target).square().sum()) < start
    assert opt.state_dict()["param_groups"][0]["lr"]


def test_what_only_the_inner_optimizer_has_is_found():
    param = point(5, 5)
    opt = oo.wrap(ScheduleFree([param]), [param])
    opt.eval()
    assert opt.inner.mode == "eval"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = opt.nonsense


def test_an_optimizer_that_owns_none_of_the_parameters():
    param = point(4, 6)
    before = param.detach().clone()
    with pytest.raises(ValueError, match=r"does not own 1 of the 1 constrained parameters \(the first is 4×6\)"):
        oo.wrap(torch.optim.Adam([nn.Parameter(torch.ones(3))]), [param])
    assert torch.equal(param, before)


def test_patterns_without_a_model():
    param = point(4, 6)
    with pytest.raises(TypeError, match="needs the model"):
        oo.wrap(torch.optim.Adam([param]), {"weight": "matrix"})


def test_an_optimizer_that_changes_a_shape():
    param = point(4, 6)

    class Prune(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            param.data = param.data[:2]

    opt = oo.wrap(Prune([param], lr=0.1), [param])
    before = param.detach().clone()
    set_gradients([param])
    with pytest.raises(RuntimeError, match=r"Prune changed the shape of constrained parameter 0 from \(4, 6\) to \(2,"):
        opt.step()
    assert torch.equal(param, before)


def test_a_state_that_was_not_saved_by_a_wrapped_optimizer():
    param = point(4, 6)
    opt = oo.wrap(torch.optim.Adam([param]), [param])
    with pytest.raises(ValueError, match="no 'landing'"):
        opt.load_state_dict(torch.optim.Adam([param]).state_dict())


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
