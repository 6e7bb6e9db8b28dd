"""Fifty steps on every placement equal those of one process."""

import pytest
import torch

from tests.distributed.cases import FOUR, Setting, train

TOLERANCE = {torch.float32: 1e-6, torch.complex64: 1e-6, torch.float64: 1e-12, torch.complex128: 1e-12}

LANDINGS = ["safe", "strict", "half", "root", "argmin", "newton-schulz"]
BASES = [
    ("VAdam", {}, 0.1),
    ("SGD", {"momentum": 0.9, "nesterov": True}, 0.01),
    ("Adam", {}, 0.01),
    ("Muon", {}, 0.02),
    ("BB", {}, 0.05),
]
POGO = [Setting("POGO", {"lr": 0.1}, "VAdam"), Setting("POGO", {"lr": 0.02, "landing": "strict"}, "SGD")]


def differences(rank, settings, cases, dtype, steps):
    """By setting and case, the largest difference of an entry; and the strategies."""
    placed, opt = train(settings, cases, dtype, steps, sharded=True)
    plain, _ = train(settings, cases, dtype, steps, sharded=False)
    found = []
    for setting, mine, theirs in zip(settings, placed, plain, strict=True):
        for case, param, expected in zip(cases, mine, theirs, strict=True):
            error = (param.detach().full_tensor() - expected).abs().max()
            found.append((f"{setting} {case.name()}", float(error)))
    return found, {plan.strategy for plan in opt.plan()}


def check(answers, tolerance, strategies):
    for found, used in answers:
        wrong = [(name, error) for name, error in found if not error <= tolerance]
        assert not wrong
        assert used == strategies


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_placement_on_four_ranks(four, dtype):
    strategies = {"local", "whole", "two-phase", "exchange"}
    check(four.run(differences, POGO, FOUR, dtype, 50), TOLERANCE[dtype], strategies)
