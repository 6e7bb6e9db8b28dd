"""A run on many processes beside the same run in one."""

import pytest
import torch

from tests.distributed.cases import Setting, train
from tests.sampling import first

TOLERANCE = {torch.float32: 1e-6, torch.complex64: 1e-6, torch.float64: 1e-12, torch.complex128: 1e-12}

DEFAULT = Setting("POGO", {"lr": 0.1}, "VAdam")
HEAVY_BALL = Setting("POGO", {"lr": 0.01, "landing": "strict"}, "SGD", {"momentum": 0.9, "nesterov": True})

ALL = {"local", "whole", "two-phase", "exchange"}

# A difference shows in the first steps; fifty are a larger sample of the same claim.
lengths = pytest.mark.parametrize("steps", first(1, [10, 50]))


def differences(rank, settings, cases, dtype, steps):
    """By setting and case, the largest difference of an entry, on one rank; and the strategies."""
    placed, opt = train(settings, cases, dtype, steps, sharded=True)
    whole = [[param.detach().full_tensor() for param in params] for params in placed]
    found = []
    if rank == 0:
        plain, _ = train(settings, cases, dtype, steps, sharded=False)
        for setting, sharded, expected in zip(settings, whole, plain, strict=True):
            for case, param, other in zip(cases, sharded, expected, strict=True):
                error = (param - other.detach()).abs().max()
                found.append((f"{setting} {case.name()}", float(error)))
    return found, {plan.strategy for plan in opt.plan()}


def check(answers, tolerance, strategies):
    for found, used in answers:
        wrong = [(name, error) for name, error in found if not error <= tolerance]
        assert not wrong
        assert used == strategies
