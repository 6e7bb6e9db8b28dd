"""Hyperparameters are validated when a base optimizer is built; the bias correction keeps its digits."""

import inspect
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim
from orthoptim.base.base import Base
from orthoptim.base.vadam import bias_correction
from tests.strategies import eps

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("SGD", {"momentum": -0.1}, "Invalid momentum value: -0.1"),
        ("SGD", {"momentum": NAN}, "Invalid momentum value: nan"),
        ("SGD", {"momentum": INF}, "Invalid momentum value: inf"),
        ("SGD", {"nesterov": True}, "Nesterov momentum requires"),
        ("SGD", {"momentum": 0.9, "dampening": 0.1, "nesterov": True}, "Nesterov momentum requires"),
        *[
            (name, options, message)
            for name in ("VAdam", "Adam")
            for options, message in [
                ({"betas": (-0.1, 0.9)}, "Invalid beta parameter at index 0: -0.1"),
                ({"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0: 1.0"),
                ({"betas": (0.9, 1.0)}, "Invalid beta parameter at index 1: 1.0"),
                ({"betas": (0.9, NAN)}, "Invalid beta parameter at index 1: nan"),
                ({"eps": -1e-8}, "Invalid eps value: -1e-08"),
                ({"eps": NAN}, "Invalid eps value: nan"),
                ({"eps": INF}, "Invalid eps value: inf"),
            ]
        ],
        *[
            (name, {"betas": betas}, "Invalid betas value")
            for name in ("VAdam", "Adam")
            for betas in [(0.9,), (0.9, 0.99, 0.999), 0.9, "ab", {0.9, 0.99}, None]
        ],
        ("VAdam", {"betas": (0.9, "x")}, "Invalid beta parameter at index 1: 'x'"),
        ("VAdam", {"betas": (True, 0.9)}, "Invalid beta parameter at index 0: True"),
        ("VAdam", {"eps": "1e-8"}, "Invalid eps value: '1e-8'"),
        ("VAdam", {"eps": None}, "Invalid eps value: None"),
        ("SGD", {"dampening": NAN}, "Invalid dampening value: nan"),
        ("SGD", {"dampening": INF, "momentum": 0.9}, "Invalid dampening value: inf"),
        ("SGD", {"momentum": "0.9"}, "Invalid momentum value: '0.9'"),
        ("SGD", {"momentum": True}, "Invalid momentum value: True"),
        ("SGD", {"momentum": 0.9, "nesterov": "no"}, "Invalid nesterov value: 'no'"),
        ("SGD", {"momentum": 0.9, "nesterov": 2}, "Invalid nesterov value: 2"),
        ("SGD", {"momentum": 0.9, "nesterov": None}, "Invalid nesterov value: None"),
        ("Muon", {"nesterov": "yes"}, "Invalid nesterov value: 'yes'"),
        ("Muon", {"steps": 2.0}, "Invalid steps value: 2.0"),
        ("Muon", {"steps": True}, "Invalid steps value: True"),
        ("Muon", {"steps": "5"}, "Invalid steps value: '5'"),
        ("Muon", {"momentum": -0.1}, "Invalid momentum value: -0.1"),
        ("Muon", {"momentum": 1.1}, "Invalid momentum value: 1.1"),
        ("Muon", {"momentum": NAN}, "Invalid momentum value: nan"),
        ("Muon", {"steps": 0}, "Invalid steps value: 0"),
    ],
)
def test_a_bad_hyperparameter_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        getattr(orthoptim, name)(**options)


def test_numbers_of_other_kinds_are_numbers():
    orthoptim.VAdam(betas=[0, np.float32(0.5)], eps=np.float64(1e-8))
    orthoptim.Muon(momentum=1)
    orthoptim.SGD(momentum=np.float32(0.5), dampening=-1, nesterov=0)
    orthoptim.Muon(steps=np.int64(3), nesterov=1)


@pytest.mark.parametrize("name", ["SGD", "VAdam", "Adam", "Muon"])
def test_a_base_is_found_by_its_name_and_rebuilt_from_its_hyperparameters(name):
    kind = getattr(orthoptim, name)
    base = kind()
    assert Base.named(base.name) is kind
    assert kind(**base.hyperparameters).hyperparameters == base.hyperparameters
    assert eval(repr(base), {name: kind}).hyperparameters == base.hyperparameters


def test_an_unknown_base_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"Invalid base: 'adagrad'; known are .*adam, .*sgd"):
        Base.named("adagrad")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    beta=st.one_of(st.sampled_from([0.9, 0.99, 0.999, 0.9999, 1 - 1e-7]), st.floats(0.01, 0.999999)),
    t=st.one_of(st.integers(1, 10), st.integers(1, 1_000_000)),
)
def test_bias_correction_is_exact_up_to_two_units_of_rounding(dtype, beta, t):
    with mpmath.workdps(40):
        expected = float(1 - mpmath.mpf(beta) ** t)
    found = bias_correction(beta, torch.tensor([float(t)], dtype=dtype))
    assert found.shape == (1,)
    assert found.dtype == dtype
    assert float(found) == pytest.approx(expected, rel=2 * eps(dtype))


@pytest.mark.parametrize("t", [1.0, 2.0, 1e6])
def test_bias_correction_without_memory_is_one(t):
    assert float(bias_correction(0.0, torch.tensor([t]))) == 1


@pytest.mark.parametrize(
    ("name", "names"),
    [("SGD", ("momentum", "dampening", "nesterov")), ("Adam", ("betas", "eps")), ("Muon", ("momentum", "nesterov"))],
)
def test_defaults_are_those_of_torch(name, names):
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    ours = getattr(orthoptim, name)().hyperparameters
    assert {key: ours[key] for key in names} == {key: theirs[key].default for key in names}


def test_other_defaults():
    assert orthoptim.VAdam().hyperparameters == {"betas": (0.9, 0.999), "eps": 1e-8}
    assert orthoptim.Muon().hyperparameters["steps"] == 5
    assert orthoptim.LBFGS().hyperparameters == {"history_size": 10}


def test_bases_that_know_their_step_length_ask_for_a_rate_of_one_and_a_strict_landing():
    for kind, curvature in ((orthoptim.CG, 0.1), (orthoptim.LBFGS, 0.9)):  # of Wolfe's condition, as Nocedal & Wright
        assert kind.default_curvature == curvature
    for kind in (orthoptim.BB, orthoptim.CG, orthoptim.LBFGS):
        assert (kind.default_lr, kind.default_landing, kind.whole_matrix) == (1.0, "strict", True)
