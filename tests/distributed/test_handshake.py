"""What is wrong on one rank only is said on all, and no rank waits."""

import pytest
import torch
from torch.distributed.tensor import DTensor

import orthoptim as oo
from tests.distributed.cases import Case, mesh_of, place, start, target
from tests.distributed.mismatches import WRONG, drill, several
from tests.distributed.world import TIMEOUT

WIDE = Case((4, 40), (4,), "1")


@pytest.mark.parametrize("name", WRONG)
def test_all_ranks_raise_the_same_error(four, name):
    messages, expected, seconds = drill(four, name)
    assert len(set(messages)) == 1, messages
    assert messages[0] is not None
    assert expected in messages[0]
    assert "\n" not in messages[0]
    assert seconds < TIMEOUT / 2, "a rank has waited for the others"


class Opaque:
    """Its repr has an address, which is another in every process."""


def harmless(rank):
    """What differs in words only, and what all ranks change alike, is no error."""
    params = several()
    params[2][1].requires_grad_(False)
    opt = oo.POGO([{"params": params, "lr": 0.1, "note": Opaque()}])
    for t in range(4):
        for i, (_, param) in enumerate(params):
            param.grad = place(target(WIDE, i, torch.float32), WIDE) if param.requires_grad else None
        opt.step()
        opt.param_groups[0]["lr"] *= 0.5
        if t == 1:
            params[2][1].requires_grad_(True)
            opt.param_groups[0]["landing"] = "strict"
    return [int(opt.state[param]["step"]) for _, param in params]


def test_what_is_the_same_on_all_ranks_is_no_error(four):
    assert four.run(harmless) == [[4, 4, 2]] * 4


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
