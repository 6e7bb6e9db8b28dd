"""What is wrong on one rank only is said on all, and no rank waits."""

import time

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard

import orthoptim as oo
from tests.distributed.cases import Case, mesh_of, place, start, target

WIDE = Case((4, 40), (4,), "1")
NEAR = Case((6, 8), (4,), "0")


def different_shapes(rank):
    case = Case((4, 44), (4,), "1") if rank == 2 else WIDE
    oo.POGO([torch.nn.Parameter(place(start(case, 0, torch.float32), case))], lr=0.1)


def different_numbers(rank):
    count = 2 if rank == 1 else 3
    oo.POGO([torch.nn.Parameter(place(start(WIDE, i, torch.float32), WIDE)) for i in range(count)], lr=0.1)


def different_options(rank):
    oo.POGO([torch.nn.Parameter(place(start(WIDE, 0, torch.float32), WIDE))], lr=0.2 if rank == 3 else 0.1)


def invalid_option(rank):
    landing = "sfae" if rank == 3 else "safe"
    oo.POGO([torch.nn.Parameter(place(start(WIDE, 0, torch.float32), WIDE))], lr=0.1, landing=landing)


def not_finite(rank):
    x = place(start(NEAR, 0, torch.float32), NEAR)
    if rank == 1:
        x.to_local()[0, 0] = torch.nan
    oo.POGO([("w", torch.nn.Parameter(x))], lr=0.1)


def seeds_of_their_own(rank):
    x = oo.orthogonalize_(torch.empty(4, 40), init="random", generator=torch.Generator().manual_seed(rank))
    local = x[:, 10 * rank : 10 * rank + 10].contiguous()
    oo.POGO([("w", torch.nn.Parameter(DTensor.from_local(local, mesh_of((4,)), [Shard(1)])))], lr=0.1)


def missing_gradient(rank, case):
    params = [(f"w{i}", torch.nn.Parameter(place(start(case, i, torch.float32), case))) for i in range(3)]
    opt = oo.POGO(params, lr=0.1)
    before = [param.to_local().clone() for _, param in params]
    for i, (_, param) in enumerate(params):
        if (rank, i) != (2, 1):
            param.grad = place(target(case, i, torch.float32), case)
    try:
        opt.step()
    finally:
        assert all(torch.equal(a, p.to_local()) for a, (_, p) in zip(before, params, strict=True))
        assert all(int(opt.state[p]["step"]) == 0 for _, p in params)


WRONG = {
    "shapes": (different_shapes, (), "different parameters: rank 0 has group 0's parameter 0 of shape (4, 40)"),
    "numbers": (different_numbers, (), "rank 1 has no more"),
    "options": (different_options, (), "'lr': 0.2"),
    "invalid": (invalid_option, (), "sfae"),
    "not finite": (not_finite, (), "parameter 'w' (6×8) is not finite"),
    "seeds": (seeds_of_their_own, (), "parameter 'w' (4×40) is not orthonormal"),
    "gradient, two-phase": (missing_gradient, (WIDE,), "parameter 'w1' (4×40) has a gradient on rank 0, 1, 3 but none"),
    "gradient, whole": (missing_gradient, (NEAR,), "parameter 'w1' (6×8) has a gradient on rank 0, 1, 3 but none"),
}


@pytest.mark.parametrize("name", WRONG)
def test_all_ranks_raise_the_same_error(four, name):
    function, args, expected = WRONG[name]
    began = time.monotonic()
    answers = four.attempt(function, *args)
    assert time.monotonic() - began < 200
    assert not any(ok for ok, _ in answers)
    messages = {message for _, (message, _) in answers}
    assert len(messages) == 1, messages
    assert expected in messages.pop()


def absent_everywhere(rank):
    params = [torch.nn.Parameter(place(start(WIDE, i, torch.float32), WIDE)) for i in range(3)]
    opt = oo.POGO(params, lr=0.1)
    for _ in range(3):
        for i in (0, 2):
            params[i].grad = place(target(WIDE, i, torch.float32), WIDE)
        opt.step()
    return [int(opt.state[p]["step"]) for p in params], opt.drift()[0].skipped


def test_a_gradient_that_no_rank_has_is_no_error(four):
    for steps, skipped in four.run(absent_everywhere):
        assert steps == [3, 0, 3]
        assert skipped == 0


def partial_gradient(rank):
    """Pending sums, as tensor parallelism leaves them, are summed."""
    from torch.distributed.tensor import Partial, Replicate

    case = Case((4, 6), (4,), "r")
    params = [torch.nn.Parameter(place(start(c, 0, torch.float64), c)) for c in (case, case)]
    opt = oo.POGO(params, lr=0.1)
    grad = target(case, 0, torch.float64)
    params[0].grad = DTensor.from_local(grad / 4, mesh_of((4,)), [Partial()])
    params[1].grad = DTensor.from_local(grad, mesh_of((4,)), [Replicate()])
    opt.step()
    return float((params[0].to_local() - params[1].to_local()).abs().max())


def test_pending_sums_of_gradients(four):
    assert max(four.run(partial_gradient)) < 1e-14
