"""Devices without float64, dtypes without arithmetic, and the benchmark's clock on a GPU."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import orthoptim as oo
from orthoptim import pointwise, tensors
from orthoptim.stiefel import draws, polynomial
from orthoptim_experiments.bench import measure
from orthoptim_experiments.bench.launches.fake_cuda import fake_cuda
from tests.gpu.test_launches import EVERY, METHODS


class NoFloat64(TorchDispatchMode):
    """Refuses tensors of a device that have numbers of 64 bits."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(results):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
                assert leaf.dtype not in (torch.float64, torch.complex128), func
        return results


@pytest.mark.parametrize(
    "name", [*(name for name in METHODS if name.endswith("default")), "pogo-strict-bb", "pogo-safe-muon"]
)
def test_no_method_uses_float64_where_there_is_none(name, monkeypatch):
    monkeypatch.setattr(tensors, "WITHOUT_FLOAT64", {"cuda"})
    monkeypatch.setattr(pointwise, "DEVICES", set())  # Triton is for CUDA and ROCm
    method, options = (METHODS | EVERY)[name]
    with fake_cuda(), NoFloat64():
        params = [torch.nn.Parameter(torch.empty(2, 6, 8, device="cuda"))]
        opt = method(params, 0.1, **options)
        for _ in range(2):
            params[0].grad = torch.empty_like(params[0])
            opt.step()


def test_polynomials_and_draws_in_float32(monkeypatch):
    c = 0.1 * torch.randn(20, 4, 4).double()
    c = c @ c.mH - 0.05 * torch.eye(4, dtype=torch.float64)
    exact = polynomial.root(c), polynomial.argmin(c)
    stream = torch.arange(50)
    monkeypatch.setattr(tensors, "WITHOUT_FLOAT64", {"cpu"})
    for found, expected in zip((polynomial.root(c.float()), polynomial.argmin(c.float())), exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-3)
    u = draws.uniform(stream, torch.ones(50), 3, 40)
    assert u.dtype == torch.float32
    assert 0 < u.min() < 0.01 < 0.99 < u.max() < 1
    assert abs(float(u.mean()) - 0.5) < 0.03
    assert draws.fingerprint(torch.randn(5, 2, 3)).unique().numel() == 5


def test_complex_numbers_of_32_bits_are_refused():
    param = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.complex32))
    with pytest.raises(ValueError, match=r"complex32.*use one of"):
        oo.POGO([param], 0.1)


def test_the_clock_of_a_gpu_is_its_events(monkeypatch):
    class Event:
        recorded = 0

        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            Event.recorded += 1
            self.at = Event.recorded * 5.0

        def elapsed_time(self, end):
            return end.at - self.at

    for name, value in {
        "Event": Event,
        "synchronize": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "memory_allocated": lambda: 100,
        "max_memory_allocated": lambda: 164,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    timing = measure.measure({"step": lambda: None}, seconds=0.0, rounds=2, device="cuda")["step"]
    assert timing.least == timing.median == pytest.approx(5e-3)
    assert timing.extra_bytes == 64
