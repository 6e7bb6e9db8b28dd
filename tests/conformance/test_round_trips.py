"""Saving, pickling and copying in the middle of a run do not show in what follows, wherever tensors lie in memory."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orthoptim as oo
from tests.conformance.methods import METHODS, point

# view: shapes of the parameters, three of them like; products of 3×50 are rounded by the way they lie in memory
SHAPES = {
    "matrix": [(3, 50), (3, 50), (3, 50), (2, 7, 5)],
    "filters": [(3, 2, 5, 5), (3, 2, 5, 5), (3, 2, 5, 5), (8, 1, 2, 2)],
    "kernels": [(3, 2, 3, 3), (3, 2, 3, 3), (3, 2, 3, 3), (2, 2, 5, 5)],
}
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128]


def by_columns(x):
    return x.mT.contiguous().mT


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def sliced(x):
    return torch.stack([x, x], -1)[..., 0]


LAYOUTS = {"rows": torch.Tensor.contiguous, "columns": by_columns, "channels-last": channels_last, "sliced": sliced}


def parameters(view, dtype, layout, neighbours):
    values = [point(*shape, dtype=dtype, view=view, seed=i).detach() for i, shape in enumerate(SHAPES[view])]
    if neighbours:  # slices of one tensor, as in a flattened model
        flat = torch.cat([layout(value).mT.flatten() if layout is by_columns else value.flatten() for value in values])
        pieces = flat.split([value.numel() for value in values])
        pairs = zip(pieces, values, strict=True)
        if layout is by_columns:
            return [torch.nn.Parameter(piece.view(value.mT.shape).mT) for piece, value in pairs]
        return [torch.nn.Parameter(piece.view(value.shape)) for piece, value in pairs]
    return [torch.nn.Parameter(layout(value)) for value in values]


def run(opt, params, schedule, start):
    """One step for each set in the schedule: the places of the parameters that have a gradient."""
    for t, chosen in enumerate(schedule, start):
        for index, param in enumerate(params):
            generator = torch.Generator().manual_seed(1000 * index + t)
            noise = torch.randn(param.shape, dtype=torch.float64, generator=generator).to(param.dtype)
            param.grad = torch.empty_like(param).copy_(noise) if index in chosen else None
        opt.step()


def alone(x):
    """A copy of the same strides; slices of one tensor are saved and loaded as such."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def saved(opt, build):
    file = io.BytesIO()
    params = [p.detach() for p in opt.param_groups[0]["params"]]
    torch.save({"params": params, "opt": opt.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = build([torch.nn.Parameter(alone(value)) for value in loaded["params"]])
    other.load_state_dict(loaded["opt"])
    return other


ROUND_TRIPS = {
    "save": saved,
    "pickle": lambda opt, build: pickle.loads(pickle.dumps(opt)),
    "deepcopy": lambda opt, build: copy.deepcopy(opt),
}
schedules = st.lists(st.sets(st.integers(0, 3)), min_size=2, max_size=5)


def same_after_a_round_trip(build, params, before, after):
    opt = build(params)
    run(opt, params, before, 0)
    others = {name: trip(opt, build) for name, trip in ROUND_TRIPS.items()}
    run(opt, params, after, len(before))
    for name, other in others.items():
        twins = other.param_groups[0]["params"]
        run(other, twins, after, len(before))
        for index, (one, two) in enumerate(zip(params, twins, strict=True)):
            assert torch.equal(one, two), f"parameter {index} after {name}"
            assert opt.state[one].keys() == other.state[two].keys()
            for key, value in opt.state[one].items():
                assert value.dtype == other.state[two][key].dtype
                assert torch.equal(value, other.state[two][key]), f"{key} of parameter {index} after {name}"


@pytest.mark.parametrize("view", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(
    method=st.sampled_from(sorted(METHODS)),
    layout=st.sampled_from(sorted(LAYOUTS)),
    neighbours=st.booleans(),
    before=schedules,
    after=schedules,
)
@settings(max_examples=8)
def test_round_trips_do_not_show(view, dtype, method, layout, neighbours, before, after):
    def build(params):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*was not orthonormal")  # nor is it meant to be
            return METHODS[method](params, view=view)

    same_after_a_round_trip(build, parameters(view, dtype, LAYOUTS[layout], neighbours), before, after)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_slices_of_a_flat_tensor_that_are_not_aligned(method):
    """BLAS rounds by where matrices start in memory, and a copy starts elsewhere."""
    params = parameters("matrix", torch.float32, torch.Tensor.contiguous, neighbours=True)
    same_after_a_round_trip(METHODS[method], params, [set(), set()], [set(), {1}, {2}, {1}, {2}])


BASES = [oo.VAdam(), oo.SGD(momentum=0.9), oo.Adam(), oo.Muon()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("base", BASES, ids=repr)
@pytest.mark.parametrize("shape", [(3, 50), (50, 3), (4, 90)])
@pytest.mark.parametrize("before", [[{1}, {0, 1}, {0, 1, 2}], [{0, 1, 2}] * 3], ids=["in turn", "at once"])
def test_parameters_that_lie_by_columns(dtype, base, shape, before):
    """Their states lie together if they were made in one step, and always after a load, never after a pickle."""
    params = [torch.nn.Parameter(by_columns(point(*shape, dtype=dtype, seed=i).detach())) for i in range(3)]
    same_after_a_round_trip(lambda params: oo.POGO(params, 0.01, base), params, before, [{0, 1, 2}] * 2)
