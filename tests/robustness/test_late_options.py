"""What is changed after construction: refused in one line before anything is stepped, or followed."""

import math

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import point

BAD = [
    ("landing", "bogus", "Invalid landing"),
    ("betas", (0.9,), "betas"),
    ("betas", (0.9, math.nan), "beta"),
    ("eps", -1.0, "eps"),
    ("landing_steps", 0, "landing_steps"),
    ("maximize", "yes", "maximize"),
    ("view", "nope", "Invalid view"),
    ("side", "left", "Invalid side"),
    ("base", "zzz", "Invalid base"),
    ("lr", "fast", "lr must be a number or a tensor"),
    ("lr", None, "lr must be a number or a tensor"),
]


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize(("option", "value", "message"), BAD, ids=lambda value: str(value).split()[0])
def test_an_option_that_is_set_to_nonsense_later_is_refused_before_any_group_steps(option, value, message, stepped):
    params = [point(3, 4), point(3, 5)]
    opt = oo.POGO([{"params": [param]} for param in params], 0.1, oo.VAdam())
    for param in params:
        param.grad = torch.randn_like(param)
    if stepped:
        opt.step()
    opt.param_groups[1][option] = value
    before = [param.detach().clone() for param in params]
    with pytest.raises((ValueError, TypeError), match=message) as error:
        opt.step()
    assert "\n" not in str(error.value)
    assert all(torch.equal(param, old) for param, old in zip(params, before, strict=True))


def test_a_parameter_of_another_shape_than_its_state_is_refused_by_name():
    param = point(4, 6)
    opt = oo.POGO([("weight", param)], 0.1)
    param.grad = torch.randn(4, 6)
    opt.step()
    param.grad, param.data = None, point(5, 7).detach()
    param.grad = torch.randn(5, 7)
    with pytest.raises(RuntimeError, match=r"parameter 'weight' .* has a state of shape \(4, 6\)"):
        opt.step()


def test_parameters_that_share_some_of_their_memory_are_refused():
    """A step of one would move the other off the manifold."""
    weight = oo.orthogonalize_(torch.empty(6, 8), init="random")
    rows = [("upper", torch.nn.Parameter(weight[:4])), ("lower", torch.nn.Parameter(weight[2:]))]
    with pytest.raises(ValueError, match=r"'lower'.* shares memory with parameter 'upper'"):
        oo.POGO(rows, 0.1)
    with pytest.raises(ValueError, match=r"'lower'.* shares memory with parameter 'upper'"):
        oo.POGO([{"params": rows[:1], "algorithm": "sgd"}, {"params": rows[1:]}], 0.1)
    oo.POGO([torch.nn.Parameter(weight[:3]), torch.nn.Parameter(weight[3:])], 0.1)
    columns = oo.orthogonalize_(torch.empty(2, 3, 4), init="random").movedim(0, 1).contiguous()
    oo.POGO([torch.nn.Parameter(columns[:, i]) for i in range(2)], 0.1)  # interleaved, but apart
