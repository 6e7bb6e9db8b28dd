"""How often ranks talk, and how much they say."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode

import orthoptim as oo
from orthoptim_experiments.bench.scale.tally import Tally
from tests.distributed.cases import Case, place, start, target
from tests.distributed.comparison import HEAVY_BALL

KINDS = {
    "local": (Case((4, 6, 9), (4,), "0"), {}),
    # Beside those of the strategy, one small all-reduce compares what ranks are about to do. With G, that takes a few
    # bytes; X follows by itself, where somebody has written to it.
    "whole": (Case((64, 16), (4,), "0"), {"alltoall_base_": 3}),
    "two-phase": (Case((8, 96), (4,), "1"), {"allreduce_": 3}),
    "exchange": (Case((96, 8), (4,), "1"), {"alltoall_base_": 2, "allreduce_": 3}),
}


def collectives(rank, cases, copies, written=True):
    """Collectives of a step by name, as CommDebugMode counts them, and the numbers that this rank put into them.

    Before it, the last rank has written to its parameters, or none has.
    """
    params = [torch.nn.Parameter(place(start(c, i, torch.float32), c)) for i in range(copies) for c in cases]
    opt = oo.POGO(params, lr=0.1)
    for i, param in enumerate(params):
        param.grad = place(target(cases[i % len(cases)], i, torch.float32), cases[i % len(cases)])
    opt.step()
    if written and rank == dist.get_world_size() - 1:
        for param in params:
            param.data.mul_(1 + 1e-6)  # which no version tells
    numbers = 0
    reduce, swap = dist.all_reduce, dist.all_to_all_single

    def counted_reduce(tensor, *args, **kwargs):
        nonlocal numbers
        numbers += tensor.numel() * tensor.itemsize / 4
        return reduce(tensor, *args, **kwargs)

    def counted_swap(output, tensor, *args, **kwargs):
        nonlocal numbers
        numbers += tensor.numel() * tensor.itemsize / 4
        return swap(output, tensor, *args, **kwargs)

    dist.all_reduce, dist.all_to_all_single = counted_reduce, counted_swap
    try:
        with CommDebugMode() as mode:
            opt.step()
    finally:
        dist.all_reduce, dist.all_to_all_single = reduce, swap
    counts = {str(op).split(".")[-1]: count for op, count in mode.get_comm_counts().items()}
    return counts, numbers


@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_collectives_does_not_depend_on_that_of_parameters(four, kind, copies):
    case, expected = KINDS[kind]
    for counts, _ in four.run(collectives, [case], copies):
        assert counts == expected


def test_all_strategies_share_their_collectives(four):
    cases = [case for case, _ in KINDS.values()]
    for counts, _ in four.run(collectives, cases, 10):
        assert counts == {"alltoall_base_": 3, "allreduce_": 2}


FORMULAS = {
    "whole": lambda p, n, w: 3 * p * n / w,
    "two-phase": lambda p, n, w: 3 * p * p,
    "exchange": lambda p, n, w: 3 * p * n / w + 3 * p * p,
}


@pytest.mark.parametrize("kind", FORMULAS)
def test_bytes_are_those_of_the_formulas(four, kind):
    case, _ = KINDS[kind]
    p, n = sorted(case.shape)
    for _, numbers in four.run(collectives, [case], 40):
        assert numbers == pytest.approx(40 * FORMULAS[kind](p, n, 4), rel=0.1)


def test_owners_keep_what_they_have_stepped(four):
    """Between steps in which nobody writes to the parameters, only G and X⁺ travel."""
    case, _ = KINDS["whole"]
    p, n = sorted(case.shape)
    for counts, numbers in four.run(collectives, [case], 40, False):
        assert counts == {"alltoall_base_": 2}
        assert numbers == pytest.approx(40 * 2 * p * n / 4, rel=0.1)


def skipping(rank, case):
    """A gradient that is not finite on one rank only."""
    params = [torch.nn.Parameter(place(start(case, i, torch.float32), case)) for i in range(3)]
    opt = HEAVY_BALL.make(params)
    before = [param.detach().full_tensor() for param in params]
    for i, param in enumerate(params):
        param.grad = place(target(case, i, torch.float32), case)
    if rank == 1:
        params[1].grad.to_local().reshape(-1)[0] = torch.nan
    opt.step()
    same = [torch.equal(a, b.detach().full_tensor()) for a, b in zip(before, params, strict=True)]
    buffer = opt.state[params[1]]["momentum_buffer"].full_tensor()
    return same, bool((buffer == 0).all()), opt.drift()


@pytest.mark.parametrize("kind", FORMULAS)
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_matrix_on_all(four, kind):
    for same, untouched, drift in four.run(skipping, KINDS[kind][0]):
        assert same == [False, True, False]
        assert untouched
        assert drift[0].skipped == 1


def hostile(rank, case, size):
    params = [torch.nn.Parameter(place(start(case, 0, torch.float32), case))]
    opt = oo.POGO(params, lr=1.0, base=oo.SGD())
    for t in range(10):
        params[0].grad = place(size * target(case, t, torch.float32), case)
        opt.step()
    return opt.drift()[0]


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("kind", FORMULAS)
def test_hostile_gradients_neither_overflow_nor_leave_the_manifold(four, kind, size):
    for drift in four.run(hostile, KINDS[kind][0], size):
        assert drift.skipped == 0
        assert drift.max_distance < 0.5 if size > 1 else drift.max_distance < 1e-5
        assert drift.clipped == (10 if size > 1 else 0)


def attacked(rank, case, dtype, landing):
    """Distances after gradients that are almost normal, and after tiny ones at an absurd learning rate."""
    worst = {}
    for name, lr, base in (("almost normal", 1.0, oo.SGD()), ("tiny", 1e12, oo.VAdam())):
        params = [torch.nn.Parameter(place(start(case, 0, dtype), case))]
        opt = oo.POGO(params, lr=lr, base=base, landing=landing)
        worst[name] = 0.0
        for t in range(10):
            noise = place(target(case, t, dtype), case)
            params[0].grad = 1e13 * params[0].detach() + noise if name == "almost normal" else 1e-20 * noise
            opt.step()
            worst[name] = max(worst[name], opt.drift()[0].max_distance)
    return worst, opt.drift()[0].rescued


@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_guarantee_holds_for_matrices_that_are_cut(four, kind, dtype, landing):
    bound = 3**-0.5 if landing == "safe" else 5e-6  # in the Frobenius norm
    for worst, rescued in four.run(attacked, KINDS[kind][0], dtype, landing):
        assert max(worst.values()) <= bound
        assert rescued == 0


def scaled(rank, case, factor):
    params = [torch.nn.Parameter(place(start(case, 0, torch.float32), case))]
    opt = oo.POGO(params, lr=0.1)
    with torch.no_grad():
        params[0].mul_(factor)
    for t in range(40):
        params[0].grad = place(target(case, t, torch.float32), case)
        opt.step()
    return opt.drift()[0]


@pytest.mark.parametrize("factor", [3.0, 1e3, 0.01])
@pytest.mark.parametrize("kind", KINDS)
def test_cut_matrices_that_are_far_away_come_back(four, kind, factor):
    for drift in four.run(scaled, KINDS[kind][0], factor):
        assert drift.rescued > 0
        assert drift.max_distance <= 1e-3


def compressed(rank, case, base):
    """Bytes sent in a step with directions in bfloat16 and without; how far the steps are apart; the distance."""
    found = []
    for dtype in (None, torch.bfloat16):
        params = [torch.nn.Parameter(place(start(case, i, torch.float32), case)) for i in range(8)]
        opt = oo.POGO(params, lr=0.1, base=base)
        opt.communication_dtype = dtype
        for t in range(3):
            for i, param in enumerate(params):
                param.grad = place(target(case, 10 * t + i, torch.float32), case)
            with Tally() as tally:
                opt.step()
        found.append((tally.sent, [param.detach().full_tensor() for param in params], opt.drift()[0].max_distance))
    (plain, old, _), (less, new, far) = found
    return less / plain, max(float(torch.dist(a, b) / torch.linalg.norm(a)) for a, b in zip(old, new, strict=True)), far


@pytest.mark.parametrize("kind", ["whole", "exchange"])
def test_directions_of_normalised_bases_may_travel_in_bfloat16(four, kind):
    case = {"whole": Case((64, 32), (4,), "0"), "exchange": Case((256, 8), (4,), "1")}[kind]
    for share, apart, far in four.run(compressed, case, oo.VAdam()):
        assert share < 0.9
        assert 0 < apart < 2**-8
        assert far < 1e-5  # as ever: X travels as it is
    for share, apart, _ in four.run(compressed, case, oo.SGD()):
        assert (share, apart) == (1, 0)
