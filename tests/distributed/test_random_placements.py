"""Four hundred random placements on four ranks, of all methods and views, equal one process."""

import random

import pytest
import torch

import orthoptim as oo
from tests.distributed.cases import Case, Setting
from tests.distributed.comparison import DEFAULT, HEAVY_BALL, differences

METHODS = [
    [DEFAULT],
    [HEAVY_BALL],
    [Setting("POGO", {"lr": 0.02}, "Muon")],
    [Setting("RGD", {"lr": 0.05})],
    [Setting("RSDM", {"lr": 0.1, "r": 2})],
    [Setting("Landing", {"lr": 0.01}, "SGD", {"momentum": 0.1})],
    [Setting("LandingPC", {"lr": 0.02})],
    [Setting("SLPG", {"lr": 0.01})],
]
PER_METHOD = 50


def random_case(chance):
    """A shape, a view that it allows, a mesh and a placement of each of its dims."""
    kind = chance.choice(["matrix", "matrix", "batch", "heads", "split", "filters", "kernels", "columns"])
    rows, columns = chance.randint(2, 14), chance.choice([chance.randint(2, 14), chance.randint(40, 110)])
    heads = chance.randint(2, 4)
    shape, view = {
        "matrix": lambda: ((rows, columns), "matrix"),
        "batch": lambda: ((chance.randint(1, 6), rows, columns), "matrix"),
        "heads": lambda: ((heads * chance.randint(2, 5), columns), oo.View(heads=heads)),
        "columns": lambda: ((columns, heads * chance.randint(2, 5)), oo.View(heads=heads, dim=1)),
        "split": lambda: ((rows + 6, columns), oo.View(split=(rows, 4, 2))),
        "filters": lambda: ((rows, chance.randint(1, 5), 3, 3), "filters"),
        "kernels": lambda: ((rows, chance.randint(1, 5), 3, 3), "kernels"),
    }[kind]()
    mesh = chance.choice([(4,), (2, 2)])
    placements = [chance.choice(["r", *map(str, range(len(shape)))]) for _ in mesh]
    if len(mesh) == 2 and placements[0] == placements[1] != "r" and chance.random() < 0.5:
        placements[0] = "s" + placements[0]  # FSDP2 over tensor parallelism
    return Case(shape, mesh, " ".join(placements), view)


@pytest.mark.soak
@pytest.mark.parametrize("settings", METHODS, ids=lambda settings: str(settings[0]))
def test_random_placements_equal_one_process(four, settings):
    chance = random.Random(str(settings[0]))
    cases = [random_case(chance) for _ in range(PER_METHOD)]
    if settings[0].method == "RSDM":  # its draws depend on what shares a bucket, see its own tests
        cases = list({(case.shape, case.view): case for case in cases}.values())
    (found, _), *_ = four.run(differences, settings, cases, torch.float64, 4)
    assert len(found) == len(cases)
    assert not [(name, error) for name, error in found if not error <= 1e-9]
