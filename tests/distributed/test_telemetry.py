"""Drift and plan of parameters that are DTensors: every rank asks, and is told the same as one process."""

import torch
from torch import nn

import orthoptim as oo
from orthoptim.views import View
from tests.distributed.cases import FOUR, place, start


def damaged(rank):
    """For each case the rows of a parameter whose first matrix lost a row: of a DTensor, and of a plain tensor."""
    found = []
    for case in FOUR:
        sound = start(case, 0, torch.float64)
        rows = []
        for placed in (True, False):
            param = nn.Parameter(place(sound.clone(), case) if placed else sound.clone())
            opt = oo.POGO([("weight", param)], lr=0.1, view=case.view, side=case.side)
            broken = sound.clone()
            (matrices,) = View.of(case.view).to_matrices(broken, case.side)
            matrices[(0,) * (matrices.ndim - 1)] = 0
            with torch.no_grad():
                param.copy_(place(broken, case) if placed else broken)
            rows.append(opt.drift(per_parameter=True)[0])
        found.append(rows)
    return found


def test_drift_of_dtensors_is_that_of_one_process(four):
    for found in four.run(damaged):
        for case, (placed, plain) in zip(FOUR, found, strict=True):
            assert placed.deficient == plain.deficient == 1, case.name()
            assert placed[:2] == plain[:2]
            assert abs(placed.max_distance - plain.max_distance) < 1e-12
            assert placed.name == "weight"


def named_plans(rank):
    cases = [case for case in FOUR if case.view == "matrix" and case.side == "auto"]
    named = [
        (f"layer{i}.{copy}", nn.Parameter(place(start(case, i, torch.float32), case)))
        for i, case in enumerate(cases)
        for copy in "ab"
    ]
    opt = oo.POGO(named, lr=0.1)
    return [(plan.name, plan.matrices) for plan in opt.plan()], opt.plan(per_parameter=True)


def test_plans_of_dtensors_have_names(four):
    for buckets, rows in four.run(named_plans):
        assert all(" +" in name for name, _ in buckets)
        assert sum(matrices for _, matrices in buckets) == sum(row.matrices for row in rows)
        assert len({row.name for row in rows}) == len(rows)
        assert max(map(len, str(rows).split("\n"))) < 100
