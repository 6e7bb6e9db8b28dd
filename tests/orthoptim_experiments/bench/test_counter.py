"""The counter of launches: torch's rules for calls that launch more than one kernel."""

import pytest
import torch

from orthoptim_experiments.bench.launches.counter import LaunchCounter
from orthoptim_experiments.bench.launches.fake_cuda import fake_cuda
from orthoptim_experiments.bench.launches.roofline import GPUS, modelled


def tensors(count, *shape, **options):
    return [torch.empty(*shape, device="cuda", **options) for _ in range(count)]


def counted(call, make=tensors, *args, **options):
    with fake_cuda():
        given = make(*args, **options)
        with LaunchCounter() as counter:
            call(given)
    return counter.totals()


@pytest.mark.parametrize(
    ("call", "count", "launches"),
    [
        (lambda a: a[0] + a[1], 2, 1),
        (lambda a: a[0].mT[1:].unsqueeze(0), 1, 0),
        (lambda a: torch.cat(a), 300, 3),
        (lambda a: torch.stack(a), 128, 1),
        (lambda a: torch._foreach_add_(a, 1), 300, 3),
        (lambda a: torch._foreach_copy_(a[:150], a[150:]), 300, 3),
        (lambda a: torch._foreach_copy_([b.mT for b in a[:20]], a[20:]), 40, 20),
        (lambda a: torch.addmm(a[0], a[1], a[2]), 3, 2),
        (lambda a: torch.addmm(a[0], a[1], a[2], out=a[0]), 3, 1),
        (lambda a: a[0] @ a[1].mT, 2, 1),
        (lambda a: a[0][:, ::2] @ a[1][:4], 2, 2),
        (lambda a: torch.linalg.vector_norm(a[0]), 1, 1),
    ],
)
def test_launches(call, count, launches):
    assert counted(call, tensors, count, 8, 8).launches == launches


def test_a_product_of_a_conjugate_is_read_as_it_is_only_where_it_is_a_transpose():
    assert counted(lambda a: a[0] @ a[1].mH, tensors, 2, 8, 8, dtype=torch.complex64).launches == 1
    assert counted(lambda a: a[0] @ a[1].conj(), tensors, 2, 8, 8, dtype=torch.complex64).launches == 2


def test_large_foreach_calls_are_cut_by_chunks():
    assert counted(torch._foreach_neg_, tensors, 1, 321 * 65536).launches == 2


@pytest.mark.parametrize(
    ("call", "copies", "syncs"),
    [
        (lambda a: a[0].sum().item(), 0, 1),
        (lambda a: bool(a[0].any()), 0, 1),
        (lambda a: a[0].cpu(), 1, 0),
        (lambda a: a[0].copy_(torch.zeros(8, 8)), 1, 0),
        (lambda a: torch.where(a[0] > 0, a[0], torch.zeros(())), 1, 0),
        (lambda a: a[0] * 2.0 + torch.full((), 3.0, device="cuda"), 0, 0),
        (lambda a: torch.linalg.eigh(a[0]), 0, 1),
    ],
)
def test_what_waits_and_what_crosses(call, copies, syncs):
    totals = counted(call, tensors, 1, 8, 8)
    assert (totals.copies, totals.syncs) == (copies, syncs)


def test_bytes_and_flops():
    totals = counted(lambda a: a[0] @ a[1], tensors, 2, 100, 100)
    assert totals.gigaflops == pytest.approx(2e6 / 1e9)
    assert totals.gigabytes == pytest.approx(3 * 4e4 / 1e9)


def test_the_model_is_bound_by_launches_for_small_work_and_by_flops_for_large():
    with fake_cuda():
        small, large = tensors(2, 8, 8), tensors(2, 8192, 8192)
        with LaunchCounter() as few:
            _ = small[0] + small[1]
        with LaunchCounter() as many:
            _ = large[0] @ large[1]
    gpu = GPUS["A100"]
    assert modelled(few.operations, gpu).step < 2e-5
    assert modelled(many.operations, gpu).step == pytest.approx(2 * 8192**3 / (0.85 * gpu.float32), rel=0.1)
    assert modelled(many.operations, gpu, tf32=True).step < modelled(many.operations, gpu).step / 5
