"""What is wrong on one rank only: drills, and how long it takes until all ranks have raised the same error.

python -m tests.distributed.mismatches --nproc 2
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

import orthoptim as oo
from orthoptim.optim.options import flatten_base
from tests.distributed.cases import Case, mesh_of, place, start, target
from tests.distributed.world import World

ODD = 1


def wide(columns=40):
    return Case((4, columns), (dist.get_world_size(),), "1")


def near():
    return Case((6, 8), (dist.get_world_size(),), "0")


def is_odd(rank):
    """Whether this is the rank that differs from the others."""
    return rank == ODD


def different_shapes(rank):
    case = wide(44 if is_odd(rank) else 40)
    oo.POGO([torch.nn.Parameter(place(start(case, 0, torch.float32), case))], lr=0.1)


def different_numbers(rank):
    count = 2 if is_odd(rank) else 3
    oo.POGO([torch.nn.Parameter(place(start(wide(), i, torch.float32), wide())) for i in range(count)], lr=0.1)


def different_options(rank):
    oo.POGO([torch.nn.Parameter(place(start(wide(), 0, torch.float32), wide()))], lr=0.2 if is_odd(rank) else 0.1)


def invalid_option(rank):
    landing = "sfae" if is_odd(rank) else "safe"
    oo.POGO([torch.nn.Parameter(place(start(wide(), 0, torch.float32), wide()))], lr=0.1, landing=landing)


def not_finite(rank):
    x = place(start(near(), 0, torch.float32), near())
    if is_odd(rank):
        x.to_local()[0, 0] = torch.nan
    oo.POGO([("w", torch.nn.Parameter(x))], lr=0.1)


def seeds_of_their_own(rank):
    x = oo.orthogonalize_(torch.empty(4, 40), init="random", generator=torch.Generator().manual_seed(rank))
    world = dist.get_world_size()
    local = x.chunk(world, dim=1)[rank].contiguous()
    oo.POGO([("w", torch.nn.Parameter(DTensor.from_local(local, mesh_of((world,)), [Shard(1)])))], lr=0.1)


def several(shape=wide):
    case = shape()
    return [(f"w{i}", torch.nn.Parameter(place(start(case, i, torch.float32), case))) for i in range(3)]


def no_mismatch(rank):
    oo.POGO(several(), lr=0.1)


def misspelt_keyword(rank):
    oo.POGO(several(), lr=0.1, **{"landign" if is_odd(rank) else "landing": "safe"})


def misspelt_in_a_group(rank):
    oo.POGO([{"params": several(), "lr": 0.1, **({"sied": "rows"} if is_odd(rank) else {})}])


def a_module_on_one_rank(rank):
    params = [torch.nn.Parameter(place(start(wide(), 0, torch.float32), wide()))]
    oo.POGO([{"params": params, "lr": 0.1, "algorithm": "pgoo" if is_odd(rank) else "pogo"}])


def different_groups(rank):
    params = several()
    groups = [{"params": params[:2]}, {"params": params[2:]}] if is_odd(rank) else [{"params": params}]
    oo.POGO(groups, lr=0.1)


def frozen_on_one(rank):
    params = several()
    params[1][1].requires_grad_(not is_odd(rank))
    oo.POGO(params, lr=0.1)


def different_tensor_rates(rank):
    oo.POGO(several(), lr=torch.tensor(1.1 if is_odd(rank) else 0.1))


def late_group(rank):
    params = several()
    opt = oo.POGO(params[:2], lr=0.1)
    opt.add_param_group({"params": params[2:], "lr": 0.3 if is_odd(rank) else 0.2})


def one_step(rank, change, shape=wide):
    """A change on one rank between two steps: nothing must have moved when all of them raise."""
    params, case = several(shape), shape()
    frozen = params[2][1].requires_grad_(change != thaw)
    opt = oo.POGO(params, lr=torch.tensor(0.1) if change == slower_tensor else 0.1)

    def give_gradients():
        for i, (_, param) in enumerate(params):
            param.grad = place(target(case, i, torch.float32), case) if param is not frozen or change != thaw else None

    give_gradients()
    opt.step()
    give_gradients()
    if is_odd(rank):
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
    "numbers": (different_numbers, (), "not there on rank {odd}"),
    "options": (different_options, (), "'lr' of group 0 is 0.1 on rank {others} and 0.2 on rank {odd}"),
    "invalid": (invalid_option, (), "sfae"),
    "misspelt keyword": (misspelt_keyword, (), "landign"),
    "misspelt in a group": (misspelt_in_a_group, (), "sied"),
    "algorithm": (a_module_on_one_rank, (), "'pgoo'"),
    "groups": (different_groups, (), "the number of param groups is 1 on rank {others} and 2 on rank {odd}"),
    "requires_grad": (frozen_on_one, (), "parameter 'w1' of group 0 is 4×40"),
    "tensor rates": (different_tensor_rates, (), "on rank {others} and tensor(1.1"),
    "late group": (late_group, (), "'lr' of group 1 is 0.2 on rank {others} and 0.3 on rank {odd}"),
    "not finite": (not_finite, (), "parameter 'w' (6×8) is not finite"),
    "seeds": (seeds_of_their_own, (), "parameter 'w' (4×40) is not orthonormal"),
    "gradient, two-phase": (
        one_step,
        (no_gradient, wide),
        "the gradient of parameter 'w1' (4×40) is there on rank {others}",
    ),
    "gradient, whole": (
        one_step,
        (no_gradient, near),
        "the gradient of parameter 'w1' (6×8) is there on rank {others}",
    ),
    "rate of a step": (one_step, (slower,), "'lr' of group 0 is 0.1 on rank {others} and 0.05 on rank {odd}"),
    "tensor rate of a step": (one_step, (slower_tensor,), "'lr' of group 0 is tensor(0.1"),
    "landing of a step": (one_step, (other_landing,), "'landing' of group 0 is 'safe' on rank {others} and 'strict'"),
    "base of a step": (one_step, (other_base,), "of group 0 is"),
    # the digest goes with the matrices, also to a rank that makes a new plan and sends none
    "rate of a step, whole": (one_step, (slower, near), "'lr' of group 0 is 0.1 on rank {others} and 0.05 on rank"),
    "landing of a step, whole": (one_step, (other_landing, near), "'landing' of group 0 is 'safe' on rank {others}"),
    "base of a step, whole": (one_step, (other_base, near), "of group 0 is"),
    "thawed, whole": (one_step, (thaw, near), "requires_grad of parameter 'w2' (6×8) is False on rank {others}"),
    "thawed": (
        one_step,
        (thaw,),
        "requires_grad of parameter 'w2' (4×40) is False on rank {others} and True on rank {odd}",
    ),
    "frozen": (
        one_step,
        (freeze,),
        "the gradient of parameter 'w2' (4×40) is there on rank {others} and missing on rank {odd}",
    ),
}


def timed(rank, function, args):
    began = time.monotonic()
    try:
        function(rank, *args)
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    return None, 0.0


def drill(world, name):
    """The messages of all ranks, what each must hold, and the seconds until the last one had raised."""
    function, args, expected = WRONG[name]
    answers = world.run(timed, function, args)
    others = ", ".join(str(rank) for rank in range(world.size) if rank != ODD)
    expected = expected.format(odd=ODD, others=others)
    return [message for message, _ in answers], expected, max(seconds for _, seconds in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nproc", type=int, default=2)
    world = World(parser.parse_args().nproc)
    world.run(no_mismatch)  # the first optimizer takes longer
    slowest = 0.0
    for name in WRONG:
        messages, expected, seconds = drill(world, name)
        assert len(set(messages)) == 1, messages
        assert expected in messages[0]
        slowest = max(slowest, seconds)
        print(f"{seconds:6.2f} s  {name}: {messages[0]}")
    print(f"{len(WRONG)} mismatches, {world.size} ranks: the same error on all within {slowest:.2f} s")
    world.close()


if __name__ == "__main__":
    main()
