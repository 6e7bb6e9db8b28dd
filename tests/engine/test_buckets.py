"""Buckets and blocks: how the work is cut does not show in the result."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim.engine.buckets import make_buckets
from tests.conformance.methods import clones, every_method, point, set_gradients, steps

SHAPES = [(4, 6), (6, 4), (5, 4, 6), (4, 6), (2, 3, 6, 4), (3, 3), (40, 3, 3)]


@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=8),
    size=st.integers(1, 2000),
    view=st.sampled_from(["matrix", "filters"]),
)
def test_every_matrix_is_gathered_once_and_comes_back(shapes, size, view):
    params = [torch.randn(shape) for shape in shapes]
    marked = [torch.full_like(p, -1.0) for p in params]
    buckets = make_buckets(params, view, "auto", cap_mb=size / 2**20)
    assert sum(bucket.p * bucket.n * sum(bucket.counts) for bucket in buckets) == sum(p.numel() for p in params)
    for bucket in buckets:
        for block in bucket.blocks:
            matrices = block.gather(block.pick(params))
            assert matrices.shape[-2:] == (bucket.p, bucket.n)
            assert (block.gather(block.pick(marked)) == -1).all()
            block.write_(block.pick(marked), matrices)
    for param, copy in zip(params, marked, strict=True):
        assert torch.equal(param, copy)


@every_method
def test_the_size_of_blocks_does_not_show(make):
    params = [point(*shape, dtype=torch.float64, seed=i) for i, shape in enumerate(SHAPES)]
    others = clones(params)
    opt, other = make(params), make(others, block_cap_mb=400 / 2**20)
    for t in range(4):
        set_gradients(params, t)
        set_gradients(others, t)
        opt.step()
        other.step()
    for one, two in zip(params, others, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_a_matrix_is_written_with_its_state_or_not_at_all(monkeypatch):
    param = point(40, 4, 6)
    opt = oo.POGO([param], 0.1, block_cap_mb=1000 / 2**20)
    steps(opt, [param], 1)
    before = param.detach().clone(), {name: value.clone() for name, value in opt.state[param].items()}
    calls = []
    update = oo.POGO.update_whole

    def failing(*args):
        calls.append(args)
        if len(calls) == 3:
            raise MemoryError
        return update(*args)

    monkeypatch.setattr(oo.POGO, "update_whole", staticmethod(failing))
    set_gradients([param], 1)
    with pytest.raises(MemoryError):
        opt.step()
    stepped = (param.detach() != before[0]).any(-1).any(-1)
    assert stepped.any()
    assert not stepped.all()
    state = opt.state[param]
    assert torch.equal(state["num_updates"], 1 + stepped.long())
    for name in ("exp_avg", "exp_avg_sq"):
        changed = (state[name] != before[1][name]).reshape(40, -1).any(-1)
        assert torch.equal(changed, stepped)


def test_one_large_batched_parameter_is_not_copied():
    param = point(50, 4, 6)
    (bucket,) = make_buckets([param], "matrix", "auto")
    block = bucket.blocks[0]
    assert block.gather([param]).data_ptr() == param.data_ptr()


def test_a_thousand_small_parameters_are_a_handful_of_batches():
    params = [torch.empty(64, 64) for _ in range(1000)]
    (bucket,) = make_buckets(params, "matrix", "auto")
    assert sum(bucket.counts) == 1000
    assert len(bucket.blocks) < 10


def test_the_plan_is_shown():
    params = [torch.nn.Parameter(torch.eye(p, n).expand(k, p, n).clone()) for k, p, n in PLANNED]
    opt = oo.POGO([*params, torch.nn.Parameter(torch.eye(3))], lr=0.1)
    assert [(b.matrices, b.p, b.n, b.form) for b in opt.plan()] == [
        (2, 64, 64, "direct-n"),
        (1, 64, 80, "direct-n"),
        (3, 10, 1000, "gram"),
        (7, 3, 3, "tiny"),
    ]
    sgd = oo.POGO(params, 0.1, oo.SGD())
    assert [b.form for b in sgd.plan()] == ["direct-n", "direct-n", "direct-p", "tiny"]
    assert [b.form for b in oo.RGD(params, 0.1).plan()] == ["rgd"] * 4


PLANNED = [(2, 64, 64), (1, 64, 80), (3, 10, 1000), (6, 3, 3)]


def test_tiny_matrices_are_written_through_lazy_conjugation():
    resolved = point(6, 3, 3, dtype=torch.complex128)
    param = torch.nn.Parameter(resolved.detach().clone().conj().resolve_conj().conj())
    assert param.is_conj()
    pair = [resolved], [param]
    for params in pair:
        opt = oo.POGO(params, 0.1)
        params[0].grad = point(6, 3, 3, seed=1, dtype=torch.complex128).detach()
        opt.step()
    torch.testing.assert_close(param.detach().resolve_conj(), resolved.detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_small_parameters_of_tiny_matrices_share_a_block_whatever_their_shapes(dtype):
    shapes = [(4, 3, 3, 3), (7, 2, 3, 3), (5, 3, 3), (3, 3), (4, 3, 3, 3)]
    params = [point(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    opt = oo.POGO(params, lr=0.1)
    assert [(bucket.matrices, bucket.blocks) for bucket in opt.plan()] == [(44, 1)]
    alone = clones(params)
    others = [oo.POGO([param], lr=0.1) for param in alone]
    for t in range(3):
        set_gradients(params, t)
        for param, copy in zip(params, alone, strict=True):
            copy.grad = param.grad.clone()
        params[1].grad[0, 0, 0, 0] = alone[1].grad[0, 0, 0, 0] = math.nan
        opt.step()
        for other in others:
            other.step()
    for param, copy, other in zip(params, alone, others, strict=True):
        torch.testing.assert_close(param, copy)
        torch.testing.assert_close(dict(opt.state[param]), dict(other.state[copy]))


def test_neighbours_in_memory_of_other_shapes_are_not_taken_for_one():
    # two that begin where two of the first one's shape would
    flat = torch.cat([point(count, 3, 3, seed=count).detach().flatten() for count in (2, 4)])
    params = [torch.nn.Parameter(flat[:18].view(-1, 3, 3)), torch.nn.Parameter(flat[18:].view(-1, 3, 3))]
    alone = clones(params)
    for some in (params, alone):
        set_gradients(some, 0)
    oo.POGO(params, lr=0.1).step()
    for param in alone:
        oo.POGO([param], lr=0.1).step()
    for param, copy in zip(params, alone, strict=True):
        torch.testing.assert_close(param, copy)
