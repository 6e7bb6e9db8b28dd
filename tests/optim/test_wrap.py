"""wrap: any torch optimizer, made orthogonal."""

import copy
import functools
import inspect
import io
import pickle
import timeit

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import orthoptim as oo
from tests.conformance.methods import clones, point, set_gradients, steps

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


@pytest.fixture
def fired():
    """Calls of the hooks of all optimizers."""
    calls = []
    handles = [
        register_optimizer_step_pre_hook(lambda opt, *_: calls.append(("pre", type(opt).__name__))),
        register_optimizer_step_post_hook(lambda opt, *_: calls.append(("post", type(opt).__name__))),
    ]
    yield calls
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hooks_of_all_optimizers_fire_once(fired, name, scheduled):
    param = point(4, 6)
    inner = build(name, [param])
    schedule = lr_scheduler.ConstantLR(inner) if scheduled else None  # which replaces the step of the inner optimizer
    opt = oo.wrap(inner, [param])
    inner.register_step_pre_hook(lambda *_: fired.append("inner pre"))
    inner.register_step_post_hook(lambda *_: fired.append("inner post"))
    opt.register_step_pre_hook(lambda *_: fired.append("own pre"))
    opt.register_step_post_hook(lambda *_: fired.append("own post"))
    set_gradients([param])
    opt.step(lambda: param.sum())
    assert fired == [("pre", "Wrapped"), "own pre", "inner pre", "inner post", "own post", ("post", "Wrapped")]
    if scheduled:
        schedule.step()  # does not complain of a step that it has not seen


def test_hooks_of_all_optimizers_see_the_parameters_before_and_after_the_whole_step():
    param = point(4, 6)
    opt = oo.wrap(torch.optim.SGD([param], lr=0.1), [param])
    seen = []
    handles = [
        register(lambda *_: seen.append(param.detach().clone()))
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
    ]
    before = param.detach().clone()
    steps(opt, [param], 1)
    for handle in handles:
        handle.remove()
    assert torch.equal(seen[0], before)
    assert torch.equal(seen[1], param)


def test_a_hook_of_the_inner_optimizer_may_change_the_arguments():
    param = point(4, 6)
    inner = torch.optim.SGD([param], lr=0.1)
    opt = oo.wrap(inner, [param])
    inner.register_step_pre_hook(lambda opt, args, kwargs: ((opt,), {"closure": lambda: 7.0}))
    set_gradients([param])
    assert opt.step() == 7.0
    inner.register_step_pre_hook(lambda *_: 3)
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        opt.step()


def test_a_step_that_someone_replaced_is_called():
    param = point(4, 6)
    inner = torch.optim.SGD([param], lr=0.1)
    opt = oo.wrap(inner, [param])
    step, called = inner.step, []
    inner.step = lambda *args: called.append(step(*args))
    set_gradients([param])
    opt.step()
    assert len(called) == 1

    class Decorated(torch.optim.SGD):
        @functools.wraps(torch.optim.SGD.step)
        def step(self, *args):
            called.append(torch.optim.SGD.step(self, *args))

    other = point(4, 6)
    steps(oo.wrap(Decorated([other], lr=0.1), [other]), [other], 1)
    assert len(called) == 2


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


def swapped(groups, mapping):
    """Put other tensors into param groups, as accelerate does."""
    for group in groups:
        group["params"] = [mapping.get(param, param) for param in group["params"]]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_parameters_that_are_replaced_before_the_first_step_are_followed(named, dtype):
    olds = [point(4, 6), point(3, 5, 5, seed=1), nn.Parameter(torch.randn(3))]
    constrained = [("a", olds[0]), ("b", olds[1])] if named else olds[:2]
    opt = oo.wrap(torch.optim.SGD([{"params": olds[1:]}, {"params": olds[0]}], lr=0.1, momentum=0.9), constrained)
    alike = [nn.Parameter(param.detach().to(dtype, copy=True)) for param in olds]
    reference = oo.wrap(torch.optim.SGD([alike[1], alike[2], alike[0]], lr=0.1, momentum=0.9), alike[:2])
    news = clones(alike)
    before = clones(olds)
    swapped(opt.param_groups, dict(zip(olds, news, strict=True)))
    for t in range(3):
        set_gradients(news, t)
        set_gradients(alike, t)
        opt.step()
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(news, alike, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(olds, before, strict=True))
    assert opt.drift()[0][:4] == reference.drift()[0][:4]
    assert opt.drift()[0].name == ("a +1 more" if named else "params[0] +1 more")


@pytest.mark.parametrize("look", ["drift", "plan"])
def test_telemetry_is_of_the_parameters_that_are_there(look):
    old, new = point(4, 6), nn.Parameter(torch.eye(4, 6, dtype=torch.float64))
    opt = oo.wrap(torch.optim.SGD([old], lr=0.1), [old])
    swapped(opt.param_groups, {old: new})
    getattr(opt, look)()
    assert opt.plan()[0].dtype == torch.float64
    assert opt.drift()[0].max_distance == 0


def test_state_after_a_swap():
    old, new = point(4, 6), point(4, 6, seed=1)
    opt = oo.wrap(torch.optim.Adam([old], lr=0.1), [old], landing="strict")
    swapped(opt.param_groups, {old: new})
    opt.load_state_dict(opt.state_dict())
    twin = copy.deepcopy(opt)
    (other,) = twin.param_groups[0]["params"]
    steps(opt, [new], 3)
    steps(twin, [other], 3)
    assert torch.equal(new, other)
    assert oo.distance(new) < 1e-5


def never_silent(opt, message):
    for act in (opt.step, opt.drift, opt.plan, opt.state_dict, lambda: opt.load_state_dict({})):
        with pytest.raises(RuntimeError, match=message):
            act()


def test_a_parameter_that_is_replaced_after_a_step_is_an_error():
    old, other = point(4, 6), point(4, 4, seed=2)
    opt = oo.wrap(torch.optim.Adam([old, other], lr=0.1), [("other", other), ("attn.weight", old)])
    steps(opt, [old, other], 1)
    new = clones([old])[0]
    before = clones([old, other])
    swapped(opt.param_groups, {old: new})
    set_gradients([new, other])
    never_silent(opt, r"parameter 'attn.weight' \(4×6\) was replaced in the param groups of Adam after it was stepped")
    assert all(torch.equal(a, b) for a, b in zip([new, other], before, strict=True))


def test_a_parameter_that_is_replaced_by_another_shape_is_an_error():
    old = point(4, 6)
    opt = oo.wrap(torch.optim.Adam([old]), [old])
    swapped(opt.param_groups, {old: point(6, 6)})
    never_silent(opt, r"parameter 0 of constrained group 0 \(4×6\) was replaced .* by a tensor of shape \(6, 6\)")


def test_a_parameter_that_is_replaced_by_one_that_is_far_away_is_an_error():
    olds = [point(4, 6), point(4, 6, seed=1)]
    opt = oo.wrap(torch.optim.Adam(olds), [{"params": [("near", olds[0])]}, {"params": [("far", olds[1])]}])
    with torch.no_grad():
        news = [nn.Parameter(1.0001 * olds[0]), nn.Parameter(3 * olds[1])]
    before = clones(news)
    swapped(opt.param_groups, dict(zip(olds, news, strict=True)))
    never_silent(opt, r"was replaced in the param groups of Adam: parameter 'far' \(4×6\) is not orthonormal")
    assert all(torch.equal(a, b) for a, b in zip(news, before, strict=True))


@pytest.mark.parametrize("remove", [lambda groups: groups.pop(0), lambda groups: groups[0]["params"].pop(0)])
def test_a_parameter_that_is_taken_away_is_an_error(remove):
    param, alike = point(4, 6), point(4, 6, seed=1)
    opt = oo.wrap(torch.optim.Adam([{"params": [param]}, {"params": [alike]}]), [("weight", param)])
    remove(opt.param_groups)
    never_silent(opt, r"parameter 'weight' \(4×6\) is no longer in the param groups of Adam")


def test_parameters_may_change_places():
    params = [point(4, 6), point(4, 6, seed=1)]
    opt = oo.wrap(torch.optim.SGD([{"params": [param]} for param in params], lr=0.1), params[:1], landing="strict")
    steps(opt, params, 1)
    opt.param_groups.reverse()
    opt.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    steps(opt, params, 20)
    assert oo.distance(params[0]) < 1e-5
    assert oo.distance(params[1]) > 1


def test_looking_for_replaced_parameters_takes_microseconds():
    params = [nn.Parameter(torch.eye(2)) for _ in range(1000)]
    opt = oo.wrap(torch.optim.SGD(params, lr=0.1), params)
    assert min(timeit.repeat(opt._follow, number=10, repeat=5)) / 10 < 1e-3


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
