"""Steps on every placement equal those of one process."""

import pytest
import torch

from tests.distributed.cases import FOUR, TWO, Setting
from tests.distributed.comparison import ALL, DEFAULT, HEAVY_BALL, TOLERANCE, check, differences, lengths

LANDINGS = ["safe", "strict", "half", "root", "argmin", "newton-schulz"]
BASES = [
    ("VAdam", {}, 0.1),
    ("SGD", {"momentum": 0.9, "nesterov": True}, 0.01),
    ("Adam", {}, 0.01),
    ("Muon", {}, 0.02),
    ("BB", {}, 0.05),
    ("CG", {}, 0.05),
    ("LBFGS", {"history_size": 2}, 0.05),
]


@lengths
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_placement_on_four_ranks(four, dtype, steps):
    settings = [DEFAULT, HEAVY_BALL] if dtype == torch.complex128 else [DEFAULT]
    check(four.run(differences, settings, FOUR, dtype, steps), TOLERANCE[dtype], ALL)


@lengths
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_every_placement_on_two_ranks(two, dtype, steps):
    check(two.run(differences, [DEFAULT, HEAVY_BALL], TWO, dtype, steps), TOLERANCE[dtype], ALL)


@lengths
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_every_landing_and_base(two, dtype, steps):
    landings = [
        Setting("POGO", {"lr": lr, "landing": landing}, base, options)
        for landing in LANDINGS
        for base, options, lr in BASES[:2]
    ]
    bases = [Setting("POGO", {"lr": lr}, base, options) for base, options, lr in BASES[2:]]
    cases = [case for case in TWO if case.strategy != "local" and case.shape[0] > 1]
    check(two.run(differences, [*landings, *bases], cases, dtype, steps), TOLERANCE[dtype], ALL - {"local"})
