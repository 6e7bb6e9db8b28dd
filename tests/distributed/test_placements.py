"""Fifty steps on every placement equal those of one process."""

import pytest
import torch

from tests.distributed.cases import FOUR, TWO, Setting, train

TOLERANCE = {torch.float32: 1e-6, torch.complex64: 1e-6, torch.float64: 1e-12, torch.complex128: 1e-12}

LANDINGS = ["safe", "strict", "half", "root", "argmin", "newton-schulz"]
BASES = [
    ("VAdam", {}, 0.1),
    ("SGD", {"momentum": 0.9, "nesterov": True}, 0.01),
    ("Adam", {}, 0.01),
    ("Muon", {}, 0.02),
    ("BB", {}, 0.05),
]
DEFAULT = Setting("POGO", {"lr": 0.1}, "VAdam")
HEAVY_BALL = Setting("POGO", {"lr": 0.01, "landing": "strict"}, "SGD", {"momentum": 0.9, "nesterov": True})
ALL = {"local", "whole", "two-phase", "exchange"}


def differences(rank, settings, cases, dtype, steps):
    """By setting and case, the largest difference of an entry, on one rank; and the strategies."""
    placed, opt = train(settings, cases, dtype, steps, sharded=True)
    whole = [[param.detach().full_tensor() for param in mine] for mine in placed]
    found = []
    if rank == 0:
        plain, _ = train(settings, cases, dtype, steps, sharded=False)
        for setting, mine, theirs in zip(settings, whole, plain, strict=True):
            for case, param, expected in zip(cases, mine, theirs, strict=True):
                error = (param - expected.detach()).abs().max()
                found.append((f"{setting} {case.name()}", float(error)))
    return found, {plan.strategy for plan in opt.plan()}


def check(answers, tolerance, strategies):
    for found, used in answers:
        wrong = [(name, error) for name, error in found if not error <= tolerance]
        assert not wrong
        assert used == strategies


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_placement_on_four_ranks(four, dtype):
    settings = [DEFAULT, HEAVY_BALL] if dtype == torch.complex128 else [DEFAULT]
    check(four.run(differences, settings, FOUR, dtype, 50), TOLERANCE[dtype], ALL)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_every_placement_on_two_ranks(two, dtype):
    check(two.run(differences, [DEFAULT, HEAVY_BALL], TWO, dtype, 50), TOLERANCE[dtype], ALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_every_landing_and_base(two, dtype):
    landings = [
        Setting("POGO", {"lr": lr, "landing": landing}, base, options)
        for landing in LANDINGS
        for base, options, lr in BASES[:2]
    ]
    bases = [Setting("POGO", {"lr": lr}, base, options) for base, options, lr in BASES[2:]]
    cases = [case for case in TWO if case.strategy != "local" and case.shape[0] > 1]
    check(two.run(differences, [*landings, *bases], cases, dtype, 50), TOLERANCE[dtype], ALL - {"local"})
