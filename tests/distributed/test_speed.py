"""How long a sharded step takes: a measurement, for which the machine must be quiet."""

import statistics
import time

import pytest
import torch
import torch.distributed as dist

import orthoptim as oo
from tests.distributed.cases import Case, place, start, target

CASE = Case((64, 16), (4,), "0")


def time_of_a_step(rank, sharded, count=200, repeats=30):
    params = []
    for i in range(count):
        x, grad = start(CASE, i, torch.float32), target(CASE, i, torch.float32)
        params.append(torch.nn.Parameter(place(x, CASE) if sharded else x))
        params[-1].grad = place(grad, CASE) if sharded else grad
    opt = oo.POGO(params, lr=0.1)
    opt.step()
    times = []
    for _ in range(repeats):
        if dist.is_initialized():
            dist.barrier()
        began = time.perf_counter()
        if sharded or rank == 0:
            opt.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@pytest.mark.soak
def test_a_step_on_200_small_matrices_takes_at_most_three_times_that_of_one_process(four):
    alone = four.run(time_of_a_step, False)[0]
    together = max(four.run(time_of_a_step, True))
    print(f"\n200×(64, 16): one process {1e3 * alone:.1f} ms, four ranks {1e3 * together:.1f} ms")
    assert together <= 3 * alone
