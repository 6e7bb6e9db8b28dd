"""Methods: told apart by name and looks, and built from plain options."""

import itertools

import pytest
import torch

import orthoptim as oo
from orthoptim_experiments.harness import methods

OPTIONS = {"RSDM": {"lr": 0.1, "r": 2}, "POGO-BB": {}}


def parameter():
    return torch.nn.Parameter(oo.orthogonalize_(torch.empty(3, 5), init="random"))


@pytest.mark.parametrize("name", methods.STANDARD)
def test_every_method_steps_from_plain_options(name):
    if not methods.find(name).installed:
        pytest.skip(f"{name} is a peer that is not installed")
    x = parameter()
    opt = methods.find(name).build([x], OPTIONS.get(name, {"lr": 0.1}))
    for _ in range(2):
        x.grad = torch.ones(3, 5)
        before = x.detach().clone()
        opt.step()
        assert torch.isfinite(x).all()
        assert not torch.equal(x, before)


def test_no_two_look_alike():
    colours = [methods.find(name).colour for name in methods.STANDARD]
    assert len(set(colours)) == len(colours)


def test_a_precision_changes_the_line_and_not_the_colour():
    for name, precision in itertools.product(methods.PAPER, methods.PRECISIONS):
        method = methods.find(f"{name}-{precision}")
        assert method.colour == methods.find(name).colour
        assert method.name == f"{name}-{precision}"
    assert len({methods.find(f"POGO-{precision}").dash for precision in methods.PRECISIONS}) == 3
    assert methods.find("POGO-BB-fp64").label == "POGO-BB, 64 bits"


def test_hyperparameters_of_the_base_reach_it():
    opt = methods.find("POGO").build([parameter()], {"lr": 0.25, "base": "SGD", "momentum": 0.3})
    assert (opt.param_groups[0]["base"], opt.param_groups[0]["momentum"]) == ("sgd", 0.3)
    opt = methods.find("POGO").build([parameter()], {"lr": 0.25, "base": "VAdam", "betas": [0.8, 0.9]})
    assert (opt.param_groups[0]["landing"], opt.param_groups[0]["betas"]) == ("half", [0.8, 0.9])


def test_the_peer_agrees_with_pogo():
    pytest.importorskip("pogo")
    x, y = parameter(), parameter()
    y.data.copy_(x)
    options = {"lr": 0.1, "base": "SGD"}  # with momentum its first step is longer: it adds the gradient twice
    mine, theirs = methods.find("POGO").build([x], options), methods.find("pogo-torch").build([y], options)
    for _ in range(5):
        x.grad, y.grad = x.detach() @ torch.ones(5, 5), y.detach() @ torch.ones(5, 5)
        mine.step()
        theirs.step()
    assert torch.allclose(x, y, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("POGO", {"lr": -1.0}, "POGO: Invalid learning rate"),
        ("POGO", {"lr": 1.0, "speed": 3}, "POGO: POGO has no option 'speed'"),
        ("POGO", {"lr": 1.0, "base": "Lion"}, "POGO: unknown base 'Lion'"),
        ("POGO", {"lr": "fast"}, "POGO: "),
        ("RSDM", {"lr": 1.0}, "RSDM: RSDM needs r"),
        ("Pogo", {}, "unknown method 'Pogo'"),
        ("POGO-fp8", {}, "unknown method 'POGO-fp8'"),
    ],
)
def test_what_makes_no_sense_is_named(name, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        methods.check(name, options)
    assert "\n" not in str(caught.value)


def test_a_peer_that_is_missing_is_not_installed(monkeypatch):
    assert methods.find("POGO").installed
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not methods.find("pogo-torch").installed
