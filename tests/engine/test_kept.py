"""What a step keeps from the last one: the same bits as if it kept nothing, whatever has changed in between."""

import copy

import pytest
import torch

import orthoptim as oo
from orthoptim.engine.plan import LocalPlan

SHAPES = [(4, 4), (4, 4), (4, 4), (3, 5), (5, 3), (2, 3, 3), (2, 3, 3)]


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(oo.orthogonalize_(torch.empty(shape), init="random", generator=generator))
        for shape in SHAPES
    ]


def set_gradients(params, t):
    generator = torch.Generator().manual_seed(t)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)


def new_memory(opt, params):
    params[1].data = params[1].detach().clone()


def new_layout(opt, params):
    params[0].data = params[0].detach().mT.clone().mT


def new_state_tensor(opt, params):
    opt.state[params[2]]["exp_avg"] = 2 * opt.state[params[2]]["exp_avg"]


def new_state_memory(opt, params):
    state = opt.state[params[2]]["exp_avg"]
    state.data = 2 * state


def new_state(opt, params):
    opt.state[params[3]] = {name: value.clone() for name, value in opt.state[params[3]].items()}


def no_state(opt, params):
    del opt.state[params[4]]


def no_gradient(opt, params):
    params[0].grad = params[5].grad = None


def option(opt, params):
    opt.param_groups[0]["landing"] = "strict"


def hyperparameter(opt, params):
    opt.param_groups[0]["betas"] = (0.5, 0.9)


def learning_rate(opt, params):
    opt.param_groups[0]["lr"] = 0.3


def swapped(opt, params):
    group = opt.param_groups[0]
    group["params"][0], group["params"][1] = group["params"][1], group["params"][0]


def added(opt, params):
    generator = torch.Generator().manual_seed(1)
    new = torch.nn.Parameter(oo.orthogonalize_(torch.empty(4, 4), init="random", generator=generator))
    new.grad = torch.ones(4, 4)
    params.append(new)
    opt.add_param_group({"params": [new]})


def replaced(opt, params):
    new = torch.nn.Parameter(params[0].detach().clone())
    new.grad = params[0].grad
    params[0] = opt.param_groups[0]["params"][0] = new


def loaded(opt, params):
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))


CHANGES = [
    new_memory,
    new_layout,
    new_state_tensor,
    new_state_memory,
    new_state,
    no_state,
    no_gradient,
    option,
    hyperparameter,
    learning_rate,
    swapped,
    added,
    replaced,
    loaded,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_between_two_steps_shows_in_the_next(change):
    """The oracle keeps nothing."""
    results = []
    for keeps in (True, False):
        params = parameters()
        opt = oo.POGO(params[:], lr=0.1)
        for t in range(5):
            set_gradients(params, t)
            if t in (2, 3):
                change(opt, params)
            if not keeps:
                opt._forget_plans()
            opt.step()
        results.append((params, opt))
    (params, opt), (others, other) = results
    assert all(map(torch.equal, params, others))
    for param, twin in zip(params, others, strict=True):
        assert opt.state[param].keys() == other.state[twin].keys()
        assert all(torch.equal(value, other.state[twin][name]) for name, value in opt.state[param].items())


def test_ordinary_steps_make_nothing_anew(monkeypatch):
    params = parameters()
    opt = oo.POGO(params, lr=0.1)
    set_gradients(params, 0)
    opt.step()
    made = []
    plain, init_group = LocalPlan.__init__, oo.POGO._init_group
    monkeypatch.setattr(
        LocalPlan, "__init__", lambda self, *args, **kwargs: made.append("plan") or plain(self, *args, **kwargs)
    )
    monkeypatch.setattr(oo.POGO, "_init_group", lambda self, *args: made.append("lists") or init_group(self, *args))
    for t in range(1, 4):
        set_gradients(params, t)
        opt.param_groups[0]["lr"] *= 0.9
        opt.step()
    assert not made
    params[0].grad = None
    opt.step()
    assert made == ["lists", "plan"]


def test_a_plan_of_divided_parameters_is_there_before_the_first_step():
    weight = torch.nn.Parameter(oo.orthogonalize_(torch.empty(6, 3), view=oo.View("matrix", split=2), init="random"))
    opt = oo.POGO([weight], lr=0.1, view=oo.View("matrix", split=2))
    before = opt.plan()
    weight.grad = torch.ones(6, 3)
    opt.step()
    assert [row.matrices for row in before] == [row.matrices for row in opt.plan()] == [2]
