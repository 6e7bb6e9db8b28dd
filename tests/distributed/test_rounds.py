"""How much is under way at a time."""

import pytest
import torch

import orthoptim as oo
from orthoptim_experiments.bench.scale import study
from orthoptim_experiments.bench.scale.models import MODELS, Case
from orthoptim_experiments.bench.scale.world import fake_world, parameters
from tests.distributed.cases import FOUR
from tests.distributed.comparison import ALL, DEFAULT, TOLERANCE, check, differences


def planned(shapes, copies, world, round_bytes=oo.POGO.round_bytes):
    """For each round, how many matrices each rank owns; and the plan that is shown."""
    with fake_world(0, world) as mesh:
        opt = oo.POGO(parameters(Case(shapes, copies, "first dim", world), mesh), lr=0.1)
        opt.round_bytes = round_bytes
        shown = opt.plan()
        parts = opt._sharded_step().rounds
    owned = [
        [sum(part.owners[rank][1] - part.owners[rank][0] for part in some) for rank in range(world)] for some in parts
    ]
    return owned, shown


def test_small_models_take_one_round():
    owned, shown = planned([(64, 64), (64, 16)], 40, 4)
    assert owned == [[20, 20, 20, 20]]
    assert [bucket.blocks for bucket in shown] == [1, 1]


@pytest.mark.parametrize("matrices_of_a_rank", [0.1, 1, 2.9])
def test_rounds_are_bounded_in_bytes_and_balanced(matrices_of_a_rank):
    each = max(1, int(matrices_of_a_rank))
    owned, (bucket,) = planned([(64, 64)], 16, 4, int(matrices_of_a_rank * 64 * 64 * 4))
    assert owned == [[each] * 4] * (4 // each)
    assert bucket.blocks == len(owned)
    assert bucket.matrices == 16


def test_memory_does_not_grow_with_the_model():
    """One matrix of 28672×8192 for each rank, of 940 MB, is the least that keeps all ranks at work."""
    layer = MODELS["70B"].layer()
    few, many = (study.measure("orthoptim", Case(layer, layers, "first dim", 8), 0)[1] for layers in (4, 8))
    assert many.extra <= 1.05 * few.extra
    assert many.extra < 7.5e9
    assert 1 < many.collectives["all-to-all"] / few.collectives["all-to-all"] <= 2


def in_rounds(rank, round_bytes, *args):
    before, oo.POGO.round_bytes = oo.POGO.round_bytes, round_bytes
    try:
        return differences(rank, *args)
    finally:
        oo.POGO.round_bytes = before


@pytest.mark.parametrize("round_bytes", [0, 1 << 13], ids=["one after another", "overlapping"])
def test_many_rounds_equal_one_process(four, round_bytes):
    cases = [case for case in FOUR if case.strategy != "local"] * 2
    found = four.run(in_rounds, round_bytes, [DEFAULT], cases, torch.float64, 3)
    check(found, TOLERANCE[torch.float64], ALL - {"local"})
