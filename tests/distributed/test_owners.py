"""Each matrix is worked on once, on one rank: in a step of replicas, at construction, by projections and drift()."""

import time
import warnings
from unittest import mock

import pytest
import torch
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils.flop_counter import FlopCounterMode

import orthoptim as oo
from orthoptim.distributed import matrices
from orthoptim.distributed.matrices import Matrices
from orthoptim.optim import construction as building
from orthoptim.views import View
from orthoptim_experiments.bench.scale.tally import Tally
from tests.distributed.cases import Case, place, start, target


def flops(rank, case, copies):
    """Of matrix products in a step, and the parameters after three."""
    params = [torch.nn.Parameter(place(start(case, i, torch.float32), case)) for i in range(copies)]
    opt = oo.POGO(params, lr=0.1)
    for t in range(3):
        for i, param in enumerate(params):
            param.grad = place(target(case, 10 * t + i, torch.float32), case)
        with FlopCounterMode(display=False) as counter:
            opt.step()
    return counter.get_total_flops(), [param.detach().to_local() for param in params]


SHARED = {
    "whole": (Case((16, 24), (2, 2), "r 0"), Case((16, 24), (4,), "0")),
    "two-phase": (Case((4, 64), (2, 2), "r 1"), Case((4, 64), (4,), "1")),
    "exchange": (Case((4, 96), (2, 2), "r 0"), Case((4, 96), (4,), "0")),
}


@pytest.mark.parametrize("kind", SHARED)
def test_replicas_share_the_work_and_hold_the_same_bits(four, kind):
    replicated, flat = SHARED[kind]
    ours, expected = four.run(flops, replicated, 8), four.run(flops, flat, 8)
    assert [count for count, _ in ours] == pytest.approx([count for count, _ in expected], rel=0.01)
    for one, other in ((0, 2), (1, 3)):
        assert all(torch.equal(a, b) for a, b in zip(ours[one][1], ours[other][1], strict=True))


def times_measured(rank, case, copies):
    """How often each matrix was measured here, by its first entry, which is its name."""
    params = []
    for i in range(copies):
        x = torch.zeros(case.shape)
        x[..., 0, 0] = i
        params.append(place(x, case))
    seen = []

    def look(x):
        seen.extend(x[:, 0, 0].tolist())
        return [x[:, 0, 0]]

    found = matrices.apply([Matrices(param, View(), "auto") for param in params], look)
    return seen, [values.flatten().tolist() for (values,) in found]


@pytest.mark.parametrize("placements", ["0 1", "r 0", "0 r", "1 r", "s0 0"])
def test_each_matrix_is_measured_once(four, placements):
    answers = four.run(times_measured, Case((8, 12), (2, 2), placements), 9)
    assert sorted(name for seen, _ in answers for name in seen) == list(range(9))
    assert max(len(seen) for seen, _ in answers) <= 3
    assert all(values == [[i] for i in range(9)] for _, values in answers)


def drift_collectives(rank, copies):
    cases = [Case((8, 12), (4,), "0"), Case((4, 64), (4,), "1"), Case((4, 3, 5), (4,), "0")]
    params = [torch.nn.Parameter(place(start(c, i, torch.float32), c)) for i in range(copies) for c in cases]
    opt = oo.POGO([{"params": params[: copies // 2]}, {"params": params[copies // 2 :]}], lr=0.1)
    with CommDebugMode() as mode:
        drift = opt.drift()
    return mode.get_total_counts(), sum(row.matrices for row in drift)


def test_drift_takes_a_constant_number_of_collectives(four):
    for copies in (2, 40):
        for count, measured in four.run(drift_collectives, copies):
            assert count == 4
            assert measured == 6 * copies


def construction(rank, size, count):
    """What building holds at most beyond its shards when all matrices need repair, in bytes; and how long it takes."""
    case = Case((size, size), (4,), "0")
    point = oo.orthogonalize_(torch.empty(size, size), init="random", generator=torch.Generator().manual_seed(0))
    params = [torch.nn.Parameter(place(point + 1e-2 / size, case).clone()) for _ in range(count)]
    began = time.process_time()
    # the block of memory that is shown to the allocator, whatever the size of the model, is left out
    kept = mock.patch.object(building, "keep_freed_memory")
    with warnings.catch_warnings(), kept, Tally() as tally:
        warnings.simplefilter("ignore")
        opt = oo.POGO(params, lr=0.1)
    seconds, far = time.process_time() - began, opt.drift()[0].max_distance
    return sum(param.to_local().nbytes for param in params), tally.peak, tally.flops, seconds, far


def check_construction(world, size, count):
    matrix = 4 * size * size
    answers = world.run(construction, size, count)
    for shard, peak, _, _, far in answers:
        assert shard + peak <= 3 * shard + matrix
        assert 0 < far <= 10 * 2**-24 * size  # the perturbation is 2e-2 away
    return answers


def test_construction_holds_no_more_than_three_shards_and_one_matrix(four):
    answers = check_construction(four, 128, 96)
    products = [flops for _, _, flops, _, _ in answers]
    assert max(products) == pytest.approx(sum(products) / 4, rel=0.1)  # each matrix on one rank


@pytest.mark.soak
def test_construction_of_75_megabytes(four):
    answers = check_construction(four, 1024, 18)
    print([f"{(shard + peak) / shard:.2f} shards, {seconds:.1f} s" for shard, peak, _, seconds, _ in answers])
