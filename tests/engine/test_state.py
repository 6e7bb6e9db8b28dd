"""Where the state lies in memory: side by side for like small parameters, and nobody can tell from the results."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim.base import Base
from orthoptim.engine.buckets import make_buckets, together
from orthoptim.engine.state import lay_together, newest


def parameters(count, *shape, columns=False, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    params = []
    for _ in range(count):
        x = oo.orthogonalize_(torch.empty(shape, dtype=dtype), init="random", generator=generator)
        params.append(torch.nn.Parameter(x.mT.contiguous().mT if columns else x))
        params[-1].grad = torch.randn(shape, dtype=dtype, generator=generator)
    return params


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_the_state_of_like_small_parameters_is_one_tensor(columns, dtype):
    params = parameters(5, 4, 6, columns=columns, dtype=dtype)
    opt = oo.POGO(params, lr=0.1)
    opt.step()
    for name, value in opt.state[params[0]].items():
        column = [opt.state[param][name] for param in params]
        (whole,) = together(column)
        assert whole.data_ptr() == value.data_ptr()
        assert torch.equal(whole, torch.stack(column))
    assert opt.state[params[1]]["exp_avg"].stride() == params[1].stride()


def test_what_does_not_lie_side_by_side_is_left_alone():
    room = torch.arange(24.0).reshape(4, 6)
    rows = list(room.unbind(0))
    assert len(together(rows)) == 1
    for others in (rows[::-1], [rows[0], rows[2]], [rows[0], rows[1].clone()], [rows[0]], [torch.empty(0)] * 2):
        assert together(others) is others
    strided = list(room.mT.unbind(0))
    assert together(strided) is strided
    # the second begins where the first ends, but in other memory
    one, two = torch.empty(8), torch.empty(8)
    neighbour = type("Neighbour", (), {"data_ptr": lambda _: one.data_ptr() + one.nbytes, "stride": lambda _: (1,)})()
    assert together([one, neighbour]) == [one, neighbour]
    del two


@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    count=st.integers(2, 4),
    columns=st.booleans(),
    odd_stride=st.booleans(),
)
def test_neighbours_are_gathered_with_the_strides_of_others(shape, count, columns, odd_stride):
    """A product is rounded by the strides of its factors: they must not tell where tensors happen to lie."""
    numel = math.prod(shape)
    pieces = torch.arange(float(count * numel)).split(numel)
    if columns:
        neighbours = [piece.view(*shape[:-2], shape[-1], shape[-2]).mT for piece in pieces]
    else:
        neighbours = [piece.view(shape) for piece in pieces]
    if odd_stride:  # that of a dim of size one may be anything
        stride = [1 if size == 1 else step for size, step in zip(shape, neighbours[0].stride(), strict=True)]
        neighbours = [piece.as_strided(shape, stride, i * numel) for i, piece in enumerate(pieces)]
    others = [torch.empty_strided(shape, each.stride()).copy_(each) for each in neighbours]
    (bucket,) = make_buckets(neighbours, "matrix", "auto")
    for block in bucket.blocks:
        whole, copies = together(block.pick(neighbours)), block.pick(others)
        assert len(whole) == 1
        one, two = block.gather(whole), block.gather(copies)
        assert one.stride() == two.stride()
        assert torch.equal(one, two)
        assert torch.equal(one, block.gather(block.pick(neighbours)))


def test_a_pickle_holds_each_state_once():
    params = parameters(40, 8, 8)
    opt = oo.POGO(params, lr=0.1)
    opt.step()
    alone = oo.POGO(params[:1], lr=0.1)
    alone.step()
    assert len(pickle.dumps(opt)) < 60 * len(pickle.dumps(alone))
    twin = pickle.loads(pickle.dumps(opt))
    column = [twin.state[param]["exp_avg"] for param in twin.param_groups[0]["params"]]
    assert len(together(column)) == 1


def test_a_step_is_the_same_wherever_the_state_lies():
    """After a copy, a load, an exchange of single tensors, or with a member that has no gradient."""

    def moved(opt):
        for param in opt.param_groups[0]["params"][1:3]:
            opt.state[param]["exp_avg"] = opt.state[param]["exp_avg"].clone()

    def loaded(opt):
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))

    def changed_behind(opt):
        value = opt.state[opt.param_groups[0]["params"][2]]["exp_avg"]
        value.data = value.data.clone()

    results = []
    for disturb in (lambda opt: None, moved, loaded, changed_behind):
        params = parameters(6, 5, 8)
        opt = oo.POGO(params, lr=0.3)
        for step in range(6):
            params[3].grad = None if step == 4 else torch.ones_like(params[3])
            opt.step()
            if step == 2:
                disturb(opt)
        results.append([*params, *(opt.state[p]["exp_avg"] for p in params), *(opt.state[p]["step"] for p in params)])
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))
    assert [float(step) for step in results[0][-6:]] == [6, 6, 6, 5, 6, 6]


def test_a_loaded_state_lies_together_again_and_shares_nothing_with_what_was_loaded():
    params = parameters(4, 3, 5)
    opt = oo.POGO(params, lr=0.1)
    opt.step()
    saved = opt.state_dict()
    other = oo.POGO(params, lr=0.1)
    other.load_state_dict(saved)
    column = [other.state[param]["exp_avg"] for param in params]
    assert len(together(column)) == 1
    assert column[0].data_ptr() != opt.state[params[0]]["exp_avg"].data_ptr()


def test_a_buffer_may_take_over_that_of_another_name():
    """A base optimizer that keeps the last two gradients: only memory that is free is written to."""

    class Remembering(Base):
        name = "remembering"

        def __init__(self):
            super().__init__()

        @staticmethod
        def buffers(hyperparameters):
            return {"last": "entries", "before": "entries"}

        @staticmethod
        def advance(grad, state, t, **hyperparameters):
            return grad, {"last": grad, "before": state["last"]}

    try:
        params = parameters(2, 4, 8)
        opt = oo.POGO(params, lr=0.1, base=Remembering())
        gradients = [torch.randn(4, 8) for _ in range(3)]
        for gradient in gradients:
            for param in params:
                param.grad = gradient.clone()
            opt.step()
        for param in params:
            assert torch.equal(opt.state[param]["last"], gradients[2])
            assert torch.equal(opt.state[param]["before"], gradients[1])
    finally:
        Remembering._registry.pop("remembering")


def test_laying_together_keeps_large_and_lone_tensors():
    large = [{"a": torch.zeros(1 << 20), "b": torch.ones(3)} for _ in range(2)]
    large[1]["c"] = torch.ones(2)
    before = [state["a"] for state in large]
    lay_together(large)
    assert all(state["a"] is value for state, value in zip(large, before, strict=True))
    assert len(together([state["b"] for state in large])) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("base", [oo.VAdam(), oo.SGD(momentum=0.9), oo.Adam()])
def test_many_tiny_matrices_have_a_state_with_the_batch_last_in_memory_and_step_alike(base, dtype):
    """In one block or in several, after a load, and from a state that lies otherwise."""

    def run(block, load=None):
        param = parameters(1, 5, 7, 3, 3, dtype=dtype)[0]
        opt = oo.POGO([param], 0.3, base, view="kernels", block_cap_mb=block * 9 * 4 / 2**20)
        for step in range(4):
            param.grad = torch.linspace(-1, 1, param.numel()).reshape(param.shape).add(step).to(dtype)
            opt.step()
            if step == 1 and load:
                opt.load_state_dict(load(opt.state_dict()))
        return param, opt.state[param]

    def by_rows(saved):
        saved = copy.deepcopy(saved)
        state = saved["state"][0]
        saved["state"][0] = {name: value.clone(memory_format=torch.contiguous_format) for name, value in state.items()}
        return saved

    param, state = run(1 << 16)
    like = {name for name, value in state.items() if value.shape == param.shape}
    assert all(state[name].is_contiguous() for name in like)
    for block, load in ((64, None), (16, None), (16, copy.deepcopy), (16, by_rows)):
        other, its = run(block, load)
        assert all(its[name].stride(1) == 1 for name in like)  # the batch
        # what is left of a vector at its end is rounded otherwise
        torch.testing.assert_close((other, its), (param, state), rtol=1e-6, atol=2e-7)


def test_an_entry_that_is_written_to_leaves_the_precision_of_the_others():
    """One rule for the master copy, entry by entry, also where ranks hold pieces of a matrix."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    master = x.float() + 1e-3
    x[0, 1] = 5.0
    assert torch.equal(newest(x, master), torch.tensor([[1.001, 5.0], [3.001, 4.001]]))
