"""What `wrap` refuses, and what of other people it takes: nothing is changed by a refusal."""

import copy

import pytest
import torch
from torch import nn

import orthoptim as oo
from tests.conformance.methods import clones, point, set_gradients, steps
from tests.optim.wrapping import OPTIMIZERS, Prodigy


class ScheduleFree(torch.optim.Optimizer):
    """A schedule-free-like optimizer: it trains a point between a fast iterate z and its average, the point of eval."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": True})

    @torch.no_grad()
    def _weigh(self, weight):
        for group in self.param_groups:
            for p in group["params"]:
                p.lerp_(self.state[p].get("z", p), weight(group["beta"]))

    def train(self):
        self._weigh(lambda beta: 1 - beta)

    def eval(self):
        self._weigh(lambda beta: 1 - 1 / beta)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, 1 / group["k"])
                p.sub_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - 1 / group["k"]) - 1))
                z.sub_(p.grad, alpha=group["lr"])


class ModesOnly(torch.optim.SGD):
    """A schedule-free optimizer that keeps its mode to itself."""

    def train(self): ...

    def eval(self): ...


class Holder(torch.optim.Optimizer):
    """An optimizer that holds another, and shares its groups."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner


def AcceleratedOptimizer(inner):
    """What has train and eval for the sake of the optimizer it holds."""
    cls = type("AcceleratedOptimizer", (ModesOnly,), {})
    outer = cls(inner.param_groups, lr=0.1)
    outer.optimizer = inner
    return outer


@pytest.mark.parametrize(
    "make",
    [
        ScheduleFree,
        lambda params: ModesOnly(params, lr=0.1),
        lambda params: Holder(ScheduleFree(params)),
        lambda params: AcceleratedOptimizer(ModesOnly(params, lr=0.1)),
    ],
)
def test_an_optimizer_whose_eval_would_leave_the_manifold_is_refused(make):
    param = point(4, 6)
    inner = make([param])
    with pytest.raises(
        TypeError, match=rf"cannot wrap {type(inner).__name__}: its eval\(\) replaces .* not orthogonal"
    ):
        oo.wrap(inner, [param])


def test_what_holds_an_optimizer_without_modes_is_not_refused():
    param = point(4, 6)
    opt = oo.wrap(AcceleratedOptimizer(torch.optim.SGD([param], lr=0.1)), [param], landing="strict")
    steps(opt, [param], 3)
    assert oo.distance(param) < 1e-5


def test_third_party_optimizers():
    param, target = point(5, 5), point(5, 5, seed=2).detach()
    opt = oo.wrap(Prodigy([param]), [param], landing="strict")
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
    inner = torch.optim.SGD([param], lr=0.1)
    inner.note = "mine"
    opt = oo.wrap(inner, [param])
    assert opt.note == "mine"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = opt.nonsense


@pytest.mark.parametrize("name", ["AdamW", "LBFGS"])
def test_a_class_instead_of_an_optimizer(name):
    with pytest.raises(TypeError, match=rf"got the class {name}: build it first, {name}\(params, lr=...\)"):
        oo.wrap(OPTIMIZERS[name], [point(4, 6)])


@pytest.mark.parametrize("thing", [None, "adam", nn.Linear(2, 2).state_dict(), lambda params: None])
def test_what_is_no_optimizer(thing):
    with pytest.raises(TypeError, match=rf"takes a torch.optim.Optimizer, but got {type(thing).__name__}"):
        oo.wrap(thing, [point(4, 6)])


@pytest.mark.parametrize("thing", [point(4, 6), nn.Linear(4, 4)])
def test_constrained_must_be_a_collection(thing):
    with pytest.raises(TypeError, match=f"patterns, or an iterable of .*, but got a {type(thing).__name__}"):
        oo.wrap(torch.optim.SGD([point(4, 6)], lr=0.1), thing)


@pytest.mark.parametrize("empty", [[], iter(())])
def test_no_constrained_parameters(empty):
    with pytest.raises(ValueError, match="empty list of constrained parameters"):
        oo.wrap(torch.optim.SGD([point(4, 6)], lr=0.1), empty)


@pytest.mark.parametrize(
    "option", [{"base": oo.VAdam()}, {"algorithm": "adamw"}, {"momentum": 0.9}, {"maximize": True}], ids=str
)
def test_options_that_would_change_the_displacement(option):
    param = point(4, 6)
    name = next(iter(option))
    with pytest.raises(ValueError, match=f"constrained group 0: {name}=.* means nothing to wrap"):
        oo.wrap(torch.optim.SGD([param], lr=0.1), [{"params": [param], **option}])


REFUSED = {
    "a stranger": lambda near, far, sound: oo.wrap(torch.optim.Adam([near]), [near, sound]),
    "a named stranger": lambda near, far, sound: oo.wrap(torch.optim.Adam([near]), [("a", near), ("b", sound)]),
    "a stranger in another group": lambda near, far, sound: oo.wrap(
        torch.optim.Adam([near]), [{"params": near}, {"params": iter([sound])}]
    ),
    "a far one in another group": lambda near, far, sound: oo.wrap(
        torch.optim.Adam([near, far]), [{"params": [near]}, {"params": [far]}]
    ),
    "a bad option": lambda near, far, sound: oo.wrap(torch.optim.Adam([near]), [near], landing="nowhere"),
    "a bad view": lambda near, far, sound: oo.wrap(
        torch.optim.Adam([near, sound]), [{"params": [near]}, {"params": [sound], "view": "kernels"}]
    ),
    "no optimizer": lambda near, far, sound: oo.wrap(torch.optim.Adam, [near]),
    "schedule-free": lambda near, far, sound: oo.wrap(ScheduleFree([near]), [near]),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("error")
def test_a_refusal_leaves_every_parameter_as_it_was(case):
    with torch.no_grad():
        params = [nn.Parameter(scale * point(4, 6)) for scale in (1.0001, 3, 1)]
    before = clones(params)
    with pytest.raises((ValueError, TypeError)):
        REFUSED[case](*params)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))


def test_a_generator_of_parameters_is_used_once():
    params = [point(4, 6), point(3, 3, seed=1)]
    opt = oo.wrap(torch.optim.SGD(params, lr=0.1), (param for param in params))
    assert opt.drift()[0].matrices == 2


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
    with pytest.raises(ValueError, match="no 'landing_num_updates'"):
        opt.load_state_dict(torch.optim.Adam([param]).state_dict())


def test_a_state_that_is_refused_leaves_both_optimizers_as_they_were():
    param = point(4, 6)
    opt = oo.wrap(torch.optim.Adam([param], lr=0.1), [param])
    steps(opt, [param], 1)
    state = copy.deepcopy(opt.state_dict())
    steps(opt, [param], 1, start=1)

    state["state"][0]["landing_num_updates"] = "one"
    with pytest.raises(ValueError, match="'num_updates'"):
        opt.load_state_dict(state)
    assert int(opt.inner.state[param]["step"]) == int(opt.lander.state[param]["step"]) == 2
