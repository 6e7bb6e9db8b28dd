"""What is wrong on one rank only is said on all, and no rank waits."""

import time

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard

import orthoptim as oo
from orthoptim.optim.options import flatten_base
from tests.distributed.cases import Case, mesh_of, place, start, target
from tests.distributed.world import TIMEOUT

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


def several(case=WIDE):
    return [(f"w{i}", torch.nn.Parameter(place(start(case, i, torch.float32), case))) for i in range(3)]


def misspelt_keyword(rank):
    oo.POGO(several(), lr=0.1, **{"landign" if rank == 1 else "landing": "safe"})


def misspelt_in_a_group(rank):
    oo.POGO([{"params": several(), "lr": 0.1, **({"sied": "rows"} if rank == 2 else {})}])


def a_module_on_one_rank(rank):
    params = [torch.nn.Parameter(place(start(WIDE, 0, torch.float32), WIDE))]
    oo.POGO([{"params": params, "lr": 0.1, "algorithm": "pgoo" if rank == 0 else "pogo"}])


def different_groups(rank):
    params = several()
    groups = [{"params": params[:2]}, {"params": params[2:]}] if rank else [{"params": params}]
    oo.POGO(groups, lr=0.1)


def frozen_on_one(rank):
    params = several()
    params[1][1].requires_grad_(rank != 3)
    oo.POGO(params, lr=0.1)


def different_tensor_rates(rank):
    oo.POGO(several(), lr=torch.tensor(0.1 + rank // 3))


def late_group(rank):
    params = several()
    opt = oo.POGO(params[:2], lr=0.1)
    opt.add_param_group({"params": params[2:], "lr": 0.3 if rank == 1 else 0.2})


def one_step(rank, change, case=WIDE):
    """A change on one rank between two steps: nothing must have moved when all of them raise."""
    params = several(case)
    frozen = params[2][1].requires_grad_(change != thaw)
    opt = oo.POGO(params, lr=torch.tensor(0.1) if change == slower_tensor else 0.1)

    def give_gradients():
        for i, (_, param) in enumerate(params):
            param.grad = place(target(case, i, torch.float32), case) if param is not frozen or change != thaw else None

    give_gradients()
    opt.step()
    give_gradients()
    if rank == 2:
        change(opt, params)
    before = [param.to_local().clone() for _, param in params]
    steps = [int(opt.state[param]["step"]) for _, param in params]
    try:
        opt.step()
    finally:
        assert all(torch.equal(a, p.to_local()) for a, (_, p) in zip(before, params, strict=True))
        assert steps == [int(opt.state[p]["step"]) for _, p in params]


def no_gradient(opt, params):
    params[1][1].grad = None


def slower(opt, params):
    opt.param_groups[0]["lr"] = 0.05  # as ReduceLROnPlateau does, given the loss of a rank


def slower_tensor(opt, params):
    opt.param_groups[0]["lr"].fill_(0.05)


def other_landing(opt, params):
    opt.param_groups[0]["landing"] = "strict"


def other_base(opt, params):
    """Which takes another strategy, with other collectives."""
    opt.param_groups[0] |= flatten_base(oo.Muon(), oo.POGO.option_names)


def thaw(opt, params):
    params[2][1].requires_grad_(True)


def freeze(opt, params):
    params[2][1].requires_grad_(False)
    params[2][1].grad = None


WRONG = {
    "shapes": (different_shapes, (), "parameter 'params[0]' of group 0 is 4×40"),
    "numbers": (different_numbers, (), "not there on rank 1"),
    "options": (different_options, (), "'lr' of group 0 is 0.1 on rank 0, 1, 2 and 0.2 on rank 3"),
    "invalid": (invalid_option, (), "sfae"),
    "misspelt keyword": (misspelt_keyword, (), "landign"),
    "misspelt in a group": (misspelt_in_a_group, (), "sied"),
    "algorithm": (a_module_on_one_rank, (), "'pgoo'"),
    "groups": (different_groups, (), "the number of param groups is 1 on rank 0 and 2 on rank 1, 2, 3"),
    "requires_grad": (frozen_on_one, (), "parameter 'w1' of group 0 is 4×40"),
    "tensor rates": (different_tensor_rates, (), "on rank 0, 1, 2 and tensor(1.1"),
    "late group": (late_group, (), "'lr' of group 1 is 0.2 on rank 0, 2, 3 and 0.3 on rank 1"),
    "not finite": (not_finite, (), "parameter 'w' (6×8) is not finite"),
    "seeds": (seeds_of_their_own, (), "parameter 'w' (4×40) is not orthonormal"),
    "gradient, two-phase": (
        one_step,
        (no_gradient, WIDE),
        "the gradient of parameter 'w1' (4×40) is there on rank 0, 1, 3",
    ),
    "gradient, whole": (one_step, (no_gradient, NEAR), "the gradient of parameter 'w1' (6×8) is there on rank 0, 1, 3"),
    "rate of a step": (one_step, (slower,), "'lr' of group 0 is 0.1 on rank 0, 1, 3 and 0.05 on rank 2"),
    "tensor rate of a step": (one_step, (slower_tensor,), "'lr' of group 0 is tensor(0.1"),
    "landing of a step": (one_step, (other_landing,), "'landing' of group 0 is 'safe' on rank 0, 1, 3 and 'strict'"),
    "base of a step": (one_step, (other_base,), "of group 0 is"),
    "thawed": (one_step, (thaw,), "requires_grad of parameter 'w2' (4×40) is False on rank 0, 1, 3 and True on rank 2"),
    "frozen": (
        one_step,
        (freeze,),
        "the gradient of parameter 'w2' (4×40) is there on rank 0, 1, 3 and missing on rank 2",
    ),
}


def timed(rank, function, args):
    began = time.monotonic()
    try:
        function(rank, *args)
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    return None, 0.0


@pytest.mark.parametrize("name", WRONG)
def test_all_ranks_raise_the_same_error(four, name):
    function, args, expected = WRONG[name]
    answers = four.run(timed, function, args)
    messages = {message for message, _ in answers}
    assert len(messages) == 1, messages
    message = messages.pop()
    assert message is not None
    assert expected in message
    assert "\n" not in message
    assert max(seconds for _, seconds in answers) < TIMEOUT / 2, "a rank has waited for the others"


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
