"""Settings for all tests."""

import functools
import gc

import hypothesis
import pytest
import torch

# One thread per worker: two pytest-xdist workers with two threads each are ten times slower on two cores.
torch.set_num_threads(1)

# No deadline: the first call into a torch kernel may take a second. Derandomised: a red run can be run again.
hypothesis.settings.register_profile(
    "orthoptim",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=(hypothesis.HealthCheck.too_slow,),  # a busy machine is no failure
)
hypothesis.settings.load_profile("orthoptim")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Without garbage collection: 11 000 tests and all modules stay, and to look through them takes a fifth of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def eager_backend(monkeypatch):
    """torch.compile traces its graphs and runs them as they are: no C++ is written and compiled."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
