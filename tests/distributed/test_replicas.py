"""Replicas of plain parameters, as under DDP, that share the work of a step."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils.flop_counter import FlopCounterMode

import orthoptim as oo
from tests.distributed.cases import Setting

QKV = oo.View("matrix", split=(8, 4, 4))
SETTINGS = {
    "VAdam": Setting("POGO", {"lr": 0.1}),
    "SGD": Setting("POGO", {"lr": 0.1}, "SGD", {"momentum": 0.9}),
    "Muon": Setting("POGO", {"lr": 0.1}, "Muon"),
    "SLPG": Setting("SLPG", {"lr": 0.01, "barzilai_borwein": True}),
    "RGD": Setting("RGD", {"lr": 0.1}),
    "Landing": Setting("Landing", {"lr": 0.1}, "SGD", {"momentum": 0.1}),
}


def trained(setting, shared, dtype=torch.float32, missing=()):
    """Parameters and state after three steps, and the products of the last one; some gradients are missing."""
    torch.manual_seed(0)
    shapes = [(16, 24)] * 6 + [(24, 16)] * 2 + [(3, 4, 6)]
    params = [torch.nn.Parameter(oo.orthogonalize_(torch.empty(s, dtype=dtype), init="random")) for s in shapes]
    fused = torch.nn.Parameter(oo.orthogonalize_(torch.empty(16, 8, dtype=dtype), view=QKV, init="random"))
    opt = setting.make([{"params": params}, {"params": [fused], "view": QKV}])
    if shared:
        opt.replica_group = dist.group.WORLD
    everything = [*params, fused]
    for _ in range(3):
        for i, param in enumerate(everything):
            grad = torch.randn(param.shape).to(dtype)
            param.grad = None if i in missing else grad
        with FlopCounterMode(display=False) as counter, CommDebugMode() as mode:
            opt.step()
    state = [value for param in everything for value in opt.state[param].values()]
    return [param.detach() for param in everything], state, counter.get_total_flops(), mode.get_total_counts(), opt


def compare(rank, setting, dtype=torch.float32):
    alone, shared = trained(setting, False, dtype), trained(setting, True, dtype)
    errors = [
        float((a.double() - b.double()).abs().max()) for k in (0, 1) for a, b in zip(alone[k], shared[k], strict=True)
    ]
    plan = [bucket.strategy for bucket in shared[4].plan()]
    return max(errors), shared[2] / alone[2], (alone[3], shared[3]), shared[0], plan


@pytest.mark.parametrize("name", SETTINGS)
def test_replicas_that_share_take_the_steps_of_one_process_with_half_of_the_products(two, name):
    (error, products, (before, after), ours, plan), (_, more, _, theirs, _) = two.run(compare, SETTINGS[name])
    assert error < 1e-5
    assert products + more == pytest.approx(1, rel=0.01)
    assert 0.3 < products < 0.7
    assert (before, after) == (0, 2)  # what is new, and the comparison before the step
    assert set(plan) == {"local"}
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_half_precision_and_missing_gradients(two):
    for error, *_ in two.run(compare, SETTINGS["VAdam"], torch.bfloat16):
        assert error < 1e-2
    for counts, drift in two.run(without_gradients):
        assert counts == ([0, 3], [0, 3])
        assert drift == 0


def without_gradients(rank):
    counts = []
    for shared in (False, True):
        *_, opt = trained(SETTINGS["VAdam"], shared, missing=(1, 9))
        counts.append([int(opt.state[opt.param_groups[0]["params"][i]].get("step", 0)) for i in (1, 2)])
    return tuple(counts), sum(row.skipped for row in opt.drift())


def different_rates(rank):
    param = torch.nn.Parameter(torch.eye(4, 6))
    opt = oo.POGO([param], lr=0.1 if rank else 0.2)
    opt.replica_group = dist.group.WORLD
    param.grad = torch.ones_like(param)
    opt.step()


def test_replicas_that_differ_all_raise(two):
    answers = two.attempt(different_rates)
    assert {error[0] for ok, error in answers if not ok} == {
        "RuntimeError: ranks disagree: 'lr' of group 0 is 0.2 on rank 0 and 0.1 on rank 1; it must be the same on all"
    }
