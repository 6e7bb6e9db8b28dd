"""What torch's own test-suite asks of every optimizer, of all methods and bases: beside the other tests of this room,
state dicts with and without names, hooks, schedulers, parameters of several dtypes, and steps with nothing to do."""

import copy
import io
import itertools

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import orthoptim as oo
from tests.conformance.methods import METHODS, clones, method, point, set_gradients, steps

# every method of the contract, and POGO with the bases these leave out
CASES = METHODS | {
    f"pogo-{base}": method(oo.POGO, lr=0.01, base=base)
    for base in (oo.SGD(), oo.SGD(momentum=0.9, nesterov=True), oo.Adam())
}
every_case = pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())


def parameters():
    return [point(4, 6), point(3, 3, seed=1), torch.nn.Parameter(torch.linspace(-1, 1, 4))]


def groups_of(params, named=False):
    """Two constrained parameters and an ordinary one."""
    members = [(f"name{i}", p) for i, p in enumerate(params)] if named else params
    return [{"params": members[:2]}, {"params": members[2:], "algorithm": "adamw"}]


def plain(state_dict):
    """Without the names, which need not be the same."""
    return {
        "state": state_dict["state"],
        "param_groups": [{k: v for k, v in g.items() if k != "param_names"} for g in state_dict["param_groups"]],
    }


def assert_same(one, two):
    one, two = plain(one), plain(two)
    assert one["param_groups"] == two["param_groups"]
    torch.testing.assert_close(one["state"], two["state"], rtol=0, atol=0)


@every_case
@pytest.mark.parametrize(("named", "other_named"), itertools.product([True, False], repeat=2))
def test_state_dicts_are_deterministic_with_and_without_names(make, named, other_named):
    params = parameters()
    opt = make(groups_of(params, named))
    steps(opt, params, 3)
    others = clones(params)
    other = make(groups_of(others, other_named))
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    if named or other_named:
        assert other.param_groups[0]["param_names"] == ["name0", "name1"]
    else:
        assert "param_names" not in other.param_groups[0]
    steps(opt, params, 3, 3)
    steps(other, others, 3, 3)
    assert all(torch.equal(one, two) for one, two in zip(params, others, strict=True))
    assert_same(opt.state_dict(), other.state_dict())
    # repeated parameters have one representation
    other.param_groups.extend(other.param_groups)
    assert plain(opt.state_dict())["param_groups"][-1] == plain(other.state_dict())["param_groups"][-1]


@every_case
@pytest.mark.parametrize("named", [True, False])
def test_saving_with_weights_only_loses_nothing(make, named):
    params = parameters()
    opt = make(groups_of(params, named))
    steps(opt, params, 2)
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert_same(loaded, opt.state_dict())
    assert loaded["param_groups"] == opt.state_dict()["param_groups"]


@every_case
def test_older_checkpoints_load_and_step(make):
    """Without any of the options that optimizers have been given in the course of time."""
    params = parameters()
    opt = make(groups_of(params))
    steps(opt, params, 2)
    saved = copy.deepcopy(opt.state_dict())
    for group in saved["param_groups"]:
        for name in ("maximize", "foreach", "fused", "differentiable", "capturable", "amsgrad", "compile"):
            group.pop(name, None)
    keys = [set(group) for group in opt.param_groups]
    opt.load_state_dict(saved)
    assert [set(group) for group in opt.param_groups] == keys
    steps(opt, params, 1, 2)


@every_case
def test_a_step_that_is_not_a_tensor_loads(make):
    params = parameters()
    opt = make(groups_of(params))
    steps(opt, params, 3)
    saved = copy.deepcopy(opt.state_dict())
    for state in saved["state"].values():
        state["step"] = state["step"].item()
    opt.load_state_dict(saved)
    steps(opt, params, 1, 3)
    assert all(float(opt.state[param]["step"]) == 4 for param in params)


@every_case
def test_groups_load_into_themselves_again_and_again(make):
    params = parameters()
    opt = make(groups_of(params))
    steps(opt, params, 2)
    first = copy.deepcopy(opt.state_dict())
    for _ in range(3):
        opt.load_state_dict(opt.state_dict())
    assert_same(first, opt.state_dict())


@every_case
def test_state_dict_hooks(make):
    def before(opt):
        opt.state["test"] = 1

    def after(opt, state_dict):
        state_dict["ran"] = "test" in state_dict["state"]
        state_dict["state"].pop("test", None)
        return state_dict

    opt = make([point(4, 6)])
    handle = opt.register_state_dict_post_hook(after)
    assert opt.state_dict()["ran"] is False
    opt.register_state_dict_pre_hook(before)
    assert opt.state_dict()["ran"] is True
    handle.remove()
    assert opt.state_dict()["state"]["test"] == 1


@every_case
def test_load_hooks_and_their_order(make):
    def in_place(opt, state_dict):
        state_dict["param_groups"][0]["lr"] = 0.002

    def replacing(opt, state_dict):
        other = copy.deepcopy(state_dict)
        other["param_groups"][0]["lr"] = 0.003
        return other

    opt = make([point(4, 6)])
    saved = opt.state_dict()
    seen = []
    opt.register_load_state_dict_post_hook(lambda opt: seen.append(opt.param_groups[0]["lr"]))
    opt.register_load_state_dict_pre_hook(in_place)
    opt.load_state_dict(saved)
    opt.register_load_state_dict_pre_hook(replacing, prepend=True)
    opt.load_state_dict(saved)
    last = opt.register_load_state_dict_pre_hook(replacing)
    opt.load_state_dict(saved)
    last.remove()
    assert seen == [0.002, 0.002, 0.003]


@every_case
def test_local_and_global_step_hooks(make):
    params = [point(4, 6)]
    opt, other = make(params), torch.optim.SGD(params, lr=0.0)
    fired = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: fired.append(0)),
        register_optimizer_step_post_hook(lambda *_: fired.append(3)),
        opt.register_step_pre_hook(lambda *_: fired.append(1)),
        opt.register_step_post_hook(lambda *_: fired.append(2)),
        other.register_step_pre_hook(lambda *_: fired.append(1)),
        other.register_step_post_hook(lambda *_: fired.append(2)),
    ]
    try:
        for optimizer in (opt, other, opt):
            set_gradients(params)
            optimizer.step()
        assert fired == [0, 1, 2, 3] * 3
    finally:
        for handle in handles:
            handle.remove()
    opt.step()
    assert len(fired) == 12


@every_case
def test_a_copy_has_all_public_attributes_and_the_same_state(make):
    params = parameters()
    opt = make(groups_of(params))
    steps(opt, params, 1)
    twin = copy.deepcopy(opt)
    assert {k for k in vars(opt) if not k.startswith("_")} == {k for k in vars(twin) if not k.startswith("_")}
    assert opt.defaults == twin.defaults
    assert_same(opt.state_dict(), twin.state_dict())
    before = copy.deepcopy(opt.state_dict())
    steps(twin, [p for group in twin.param_groups for p in group["params"]], 1)
    assert_same(opt.state_dict(), before)


@every_case
def test_can_be_printed(make):
    text = repr(make(groups_of(parameters())))
    assert "algorithm: adamw" in text
    assert "view: matrix" in text


@every_case
def test_a_step_without_gradients_does_nothing(make):
    params = parameters()
    before = [p.detach().clone() for p in params]
    opt = make(groups_of(params))
    assert opt.step(lambda: 1.0) == 1.0
    assert all(torch.equal(one, two) for one, two in zip(params, before, strict=True))
    assert not any(opt.state.values())


@every_case
def test_parameters_that_need_no_gradient_are_taken(make):
    params = [point(4, 6).requires_grad_(False)]
    before = params[0].detach().clone()
    make(params).step()
    assert torch.equal(params[0], before)


@every_case
def test_zero_gradients_move_nothing_but_rounding(make):
    params = [point(5, 1), point(4, 6, seed=1)]
    before = [p.detach().clone() for p in params]
    opt = make(params, **({"r": 1} if "r" in make(params).defaults else {}))
    for param in params:
        param.grad = torch.zeros_like(param)
    opt.step()
    for one, two in zip(params, before, strict=True):
        torch.testing.assert_close(one.detach(), two, rtol=0, atol=1e-6)


@every_case
def test_gradients_are_not_written_to(make):
    params = parameters()
    opt = make(groups_of(params))
    for t in range(2):
        set_gradients(params, t)
        kept = [p.grad.clone() for p in params]
        versions = [p.grad._version for p in params]
        opt.step()
        assert all(torch.equal(p.grad, grad) for p, grad in zip(params, kept, strict=True))
        assert [p.grad._version for p in params] == versions


@every_case
def test_parameters_of_several_dtypes_step_like_each_alone(make):
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
    params = [point(4, 6, dtype=dtype, seed=i) for i, dtype in enumerate(dtypes)]
    alone = clones(params)
    opt, opts = make(params), [make([p]) for p in alone]
    for t in range(3):
        set_gradients(params, t)
        for one, two, single in zip(params, alone, opts, strict=True):
            two.grad = one.grad.clone()
            single.step()
        opt.step()
    for one, two, single in zip(params, alone, opts, strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(dict(opt.state[one]), dict(single.state[two]), rtol=0, atol=0)


@every_case
def test_a_new_default_dtype_does_not_show(make):
    params, others = [point(4, 6)], [point(4, 6)]
    opt, other = make(params), make(others)
    for t in range(3):
        set_gradients(params, t)
        set_gradients(others, t)
        opt.step()
        torch.set_default_dtype(torch.float64)
        try:
            other.step()
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(params[0], others[0])
    assert_same(opt.state_dict(), other.state_dict())


@every_case
def test_learning_rates_of_groups(make):
    """The lr of a group counts, not the default; and one of zero moves nothing but rounding."""
    moving, resting, same = point(4, 6), point(4, 6, seed=1), point(4, 6)
    start = resting.detach().clone()
    opt = make([{"params": [moving], "lr": 0.01}, {"params": [resting]}], lr=0.0)
    other = make([same], lr=0.01)
    for t in range(5):
        set_gradients([moving, resting], t)
        same.grad = moving.grad.clone()
        opt.step()
        other.step()
    assert torch.equal(moving, same)
    torch.testing.assert_close(resting.detach(), start, rtol=0, atol=1e-6)


SCHEDULERS = {
    "step": [lambda opt: lr_scheduler.StepLR(opt, 2, gamma=0.5)],
    "chained": [lambda opt: lr_scheduler.StepLR(opt, 2, gamma=0.5), lambda opt: lr_scheduler.ExponentialLR(opt, 0.9)],
    "linear": [lambda opt: lr_scheduler.LinearLR(opt, 0.4, total_iters=20)],
    "sequential": [
        lambda opt: lr_scheduler.SequentialLR(
            opt, [lr_scheduler.ConstantLR(opt, 0.5, 2), lr_scheduler.CosineAnnealingLR(opt, 4)], [2]
        )
    ],
    "plateau": [lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=0)],
}


@every_case
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_schedulers_drive_groups_and_survive_a_checkpoint(make, tensor_lr):
    """A resumed run with resumed schedulers equals one that never stopped, constrained and ordinary groups alike."""

    def build(params):
        return make(groups_of(params), lr=torch.tensor(0.05) if tensor_lr else 0.05)

    def advance(opt, params, schedulers, start):
        for t in range(start, start + 3):
            steps(opt, params, 1, t)
            for scheduler in schedulers:
                scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))

    for makers in SCHEDULERS.values():
        params = parameters()
        opt = build(params)
        schedulers = [maker(opt) for maker in makers]
        advance(opt, params, schedulers, 0)
        others = clones(params)
        other = build(others)
        resumed = [maker(other) for maker in makers]
        for scheduler, former in zip(resumed, schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(former.state_dict()))
        other.load_state_dict(copy.deepcopy(opt.state_dict()))
        advance(opt, params, schedulers, 3)
        advance(other, others, resumed, 3)
        assert [float(g["lr"]) for g in opt.param_groups] == [float(g["lr"]) for g in other.param_groups]
        assert float(opt.param_groups[0]["lr"]) != pytest.approx(0.05)
        assert all(torch.equal(one, two) for one, two in zip(params, others, strict=True))


@every_case
def test_errors_at_construction(make):
    param = point(4, 6)
    with pytest.raises(TypeError, match="params argument given to the optimizer should be an iterable"):
        make(param)
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        make([{"params": [param]}, {"params": [param]}])
    with pytest.warns(UserWarning, match="duplicate parameters"):
        make([param, param])
    with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
        make([])
    with pytest.raises(TypeError, match="ordered collections"):
        make([{"params": {param}}])
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        make([param * 1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_case
def test_a_state_moves_to_another_device(make):
    params = parameters()
    opt = make(groups_of(params))
    steps(opt, params, 2)
    saved = copy.deepcopy(opt.state_dict())
    others = [torch.nn.Parameter(p.detach().cuda()) for p in params]
    other = make(groups_of(others))
    other.load_state_dict(saved)
    assert_same(saved, opt.state_dict())
    for param in others[:2]:
        assert all(value.device == param.device for value in other.state[param].values())
    set_gradients(params, 2)
    for param, twin in zip(params, others, strict=True):
        twin.grad = param.grad.cuda()
    opt.step()
    other.step()
    for param, twin in zip(params, others, strict=True):
        torch.testing.assert_close(twin.cpu(), param, rtol=1e-4, atol=1e-5)
