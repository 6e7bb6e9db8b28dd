"""Threads, forks, global settings of torch around `step`: the same bits as without."""

import contextlib
import os
import threading

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import clones, every_method, point, set_gradients, steps

SHAPES = [(4, 6), (3, 3, 3), (2, 6, 6)]


def make_params(seed=0, dtype=torch.float32):
    return [point(*shape, dtype=dtype, seed=seed + i) for i, shape in enumerate(SHAPES)]


def assert_same(params, others):
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)
        assert one.dtype == two.dtype


@every_method
def test_two_optimizers_in_two_threads_step_as_one_after_the_other(make):
    runs = [make_params(seed) for seed in (0, 10)]
    others = [clones(params) for params in runs]
    start = threading.Barrier(2)
    errors = []

    def train(params):
        try:
            opt = make(params)
            start.wait()
            steps(opt, params, 10)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(params,)) for params in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for params, expected in zip(runs, others, strict=True):
        steps(make(expected), expected, 10)
        assert_same(params, expected)


@every_method
def test_a_forked_child_steps_as_its_parent_would(make, tmp_path):
    params = make_params()
    opt = make(params)
    steps(opt, params, 1)
    child = os.fork()
    if child == 0:
        try:
            steps(opt, params, 2, 1)
            oo.save({"params": params, "state": opt.state_dict()["state"]}, tmp_path / "child.pt")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    steps(opt, params, 2, 1)
    saved = torch.load(tmp_path / "child.pt", weights_only=True)
    assert_same(params, saved["params"])
    for index, state in opt.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(value, saved["state"][index][name]), name


@contextlib.contextmanager
def deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS = {
    "deterministic algorithms": deterministic_algorithms,
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype bfloat16": lambda: default_dtype(torch.bfloat16),
    "default device meta": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "enable_grad": torch.enable_grad,
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
}


@every_method
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_setting_that_changes_between_construction_and_step_changes_nothing(make, setting):
    """The first step, which creates the state, and a later one."""
    params = make_params()
    others = clones(params)
    opt, other = make(params), make(others)
    for t in range(4):
        set_gradients(params, t)
        set_gradients(others, t)
        with setting() if t in (0, 2) else contextlib.nullcontext():
            opt.step()
        other.step()
    assert_same(params, others)
    for one, two in zip(params, others, strict=True):
        for name, value in other.state[two].items():
            assert torch.equal(opt.state[one][name], value), name
            assert opt.state[one][name].dtype == value.dtype, name


@every_method
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_half_precision_and_ordinary_groups_under_a_setting(make, setting):
    def groups():
        torch.manual_seed(0)
        return [
            {"params": [point(4, 6, dtype=torch.bfloat16)]},
            {"params": [torch.nn.Parameter(torch.randn(5))], "algorithm": "adamw", "lr": 0.1},
            {"params": [torch.nn.Parameter(torch.randn(5))], "algorithm": "sgd", "lr": 0.1, "momentum": 0.9},
        ]

    results = []
    for context in (setting, contextlib.nullcontext):
        opt = make(groups())
        params = [param for group in opt.param_groups for param in group["params"]]
        for t in range(2):
            set_gradients(params, t)
            with context():
                opt.step()
        results.append(params)
    assert_same(*results)


@every_method
def test_construction_under_another_default_dtype_and_device(make):
    params = make_params()
    others = clones(params)
    with default_dtype(torch.float64):
        opt = make(params)
    steps(opt, params, 2)
    steps(make(others), others, 2)
    assert_same(params, others)


@every_method
def test_inference_mode_around_a_step(make):
    """As with torch.optim.AdamW: a step there works where the state exists, and its bits are the same."""
    params = make_params()
    others = clones(params)
    opt, other = make(params), make(others)
    for t in range(4):
        set_gradients(params, t)
        set_gradients(others, t)
        with torch.inference_mode() if t == 2 else contextlib.nullcontext():
            opt.step()
        other.step()
    assert_same(params, others)


@every_method
def test_a_first_step_in_inference_mode(make):
    """As with torch.optim.AdamW: the state is made of inference tensors, which only inference_mode may change."""
    params = make_params()
    others = clones(params)
    opt, other = make(params), make(others)
    for t in range(2):
        set_gradients(params, t)
        set_gradients(others, t)
        with torch.inference_mode():
            opt.step()
        other.step()
    set_gradients(params, 2)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        opt.step()
    assert_same(params, others)


@pytest.mark.parametrize("setting", [*SETTINGS.values(), torch.inference_mode], ids=[*SETTINGS, "inference_mode"])
def test_a_setting_around_a_wrapped_step_changes_nothing(setting):
    params = make_params()
    others = clones(params)
    opt, other = (oo.wrap(torch.optim.NAdam(each, lr=0.05), each) for each in (params, others))
    for t in range(4):
        set_gradients(params, t)
        set_gradients(others, t)
        with setting() if t == 2 else contextlib.nullcontext():
            opt.step()
        other.step()
    assert_same(params, others)
