"""Views: a parameter as matrices and back."""

import copy
import dataclasses
import json
import pickle
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim import views

SHAPES = st.lists(st.integers(0, 5), min_size=2, max_size=5).map(tuple)


@given(shape=SHAPES, name=st.sampled_from(views.VIEWS), side=st.sampled_from(views.SIDES))
def test_there_and_back(shape, name, side):
    tensor, view = numbered(shape), oo.View(name)
    try:
        (matrices,) = view.to_matrices(tensor, side)
    except ValueError:
        first = {"matrix": len(shape) - 2, "filters": 0, "kernels": 2}[name]
        rows, columns = (shape[first] if first < len(shape) else 0), torch.Size(shape[first + 1 :]).numel()
        impossible = (side == "rows" and rows > columns) or (side == "columns" and columns > rows)
        no_kernels = name == "kernels" and (len(shape) < 3 or rows == columns == 1)
        assert impossible or no_kernels or rows == 0 or columns == 0
        return
    assert matrices.shape[-2] <= matrices.shape[-1]
    assert matrices.shape[:-2] == view.batch_shape(shape)
    assert torch.equal(view.from_matrices([matrices], tensor.shape, side), tensor)
    assert matrices.data_ptr() == tensor.data_ptr()  # a view: contiguous tensors are not copied


def numbered(shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


@st.composite
def divided(draw):
    """A view that divides, a shape that it fits, and the matrices as slices, one after another along the dim."""
    name = draw(st.sampled_from(["matrix", "filters", "transposed"]))
    other = draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    sizes = [draw(st.integers(1, 4)) for _ in counts]
    if draw(st.booleans()):
        sizes = sizes[:1] * len(counts)
    lengths = [count * size for count, size in zip(counts, sizes, strict=True)]
    blocks = [size for count, size in zip(counts, sizes, strict=True) for _ in range(count)]
    if name == "transposed":
        view, shape = oo.View("filters", groups=counts[0], transposed=True), (lengths[0], other, 2)
        blocks = blocks[: counts[0]]
    elif name == "filters":
        view, shape = oo.View("filters", split=tuple(lengths)), (sum(lengths), other, 2)
        blocks = lengths
    else:
        batch, dim = tuple(draw(st.lists(st.integers(1, 3), max_size=2))), draw(st.sampled_from([-2, -1]))
        view = oo.View("matrix", split=tuple(lengths), heads=tuple(counts), dim=dim)
        shape = (*batch, sum(lengths), other) if dim == -2 else (*batch, other, sum(lengths))
    return view, shape, blocks


@given(case=divided(), complex_entries=st.booleans(), transpose=st.booleans())
def test_divided_parameters_there_and_back(case, complex_entries, transpose):
    view, shape, blocks = case
    tensor = numbered(shape)
    tensor = tensor * (1 + 2j) if complex_entries else tensor
    if transpose:
        tensor = tensor.mT.contiguous().mT
    parts = view.to_matrices(tensor)
    dim = view.divided_dim(len(shape))
    slices = tensor.split(blocks, dim)
    if view.name == "filters":
        slices = [each.transpose(0, 1) if view.transposed else each for each in slices]
        slices = [each.flatten(1) for each in slices]
    expected = [each.mT if each.shape[-2] > each.shape[-1] else each for each in slices]
    found = [x for part in parts for x in part.unbind(-3)]
    assert len(found) == len(expected) == view.batch_shape(shape)[-1]
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    assert all(x.shape[:-2] == part.batch for x, part in zip(parts, view.parts(shape), strict=True))
    assert torch.equal(view.from_matrices(parts, shape), tensor)
    assert torch.equal(view.join_values([x[..., 0, 0] for x in parts]), values_of(expected))
    entries = [part.entries(tensor) for part in view.parts(shape)]
    assert all(x.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for x in entries)
    assert [view.part(x.shape)[:4] for x in entries] == [part[:4] for part in view.parts(shape)]


def values_of(matrices):
    return torch.stack([x[..., 0, 0] for x in matrices], -1)


def test_a_view_is_a_value():
    view = oo.View("matrix", split=[8, 4, 4], heads=(4, 2, 2))
    assert repr(view) == "View('matrix', split=(8, 4, 4), heads=(4, 2, 2))"
    assert repr(oo.View()) == "View('matrix')"
    assert {view: 1}[oo.View(split=(8, 4, 4), heads=(4, 2, 2))] == 1
    assert oo.View("filters") != oo.View("filters", groups=1)
    assert views.View.of("filters") == oo.View("filters")
    assert pickle.loads(pickle.dumps(view)) == copy.deepcopy(view) == view
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.heads = 3


@given(case=divided())
def test_plain_values_stand_for_the_view(case):
    view, _, _ = case
    assert views.View.of(json.loads(json.dumps(view.plain()))) == view


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "heads"}, "Invalid view: 'heads'; choose one of matrix, filters, kernels"),
        ({"split": 0}, "Invalid split value: 0; it must be a positive integer"),
        ({"split": ()}, "Invalid split value"),
        ({"split": (2, True)}, "Invalid split value"),
        ({"heads": 2.0}, "Invalid heads value"),
        ({"heads": (1, 2)}, "are 2 numbers, but there are 1 parts"),
        ({"name": "filters", "groups": (1, 2)}, "Invalid groups value: .*one number"),
        ({"name": "filters", "heads": 2}, "view 'filters' has no heads: filters are divided by groups"),
        ({"name": "kernels", "split": 2}, "view 'kernels' has no split"),
        ({"groups": 2}, "view 'matrix' has no groups"),
        ({"transposed": True}, "view 'matrix' has no transposed"),
        ({"dim": 1}, "dim=1 has no effect on a view without split and heads"),
        ({"name": "filters", "transposed": True, "split": 2}, "cannot be split"),
        ({"heads": 2, "dim": "last"}, "Invalid dim value"),
        ({"name": "filters", "transposed": 1}, "Invalid transposed value"),
    ],
)
def test_views_without_a_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        oo.View(**options)


@pytest.mark.parametrize("view", [3, None, ["matrix"], {"name": "matrix", "head": 2}, "matrices", {"name": "x"}])
def test_what_is_no_view_is_refused(view):
    with pytest.raises(ValueError, match="Invalid view"):
        views.View.of(view)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_orthonormal_columns_are_orthonormal_rows_of_the_transpose(dtype):
    tall = oo.orthogonalize_(torch.randn(6, 4, dtype=dtype))
    torch.testing.assert_close(tall.mH @ tall, torch.eye(4, dtype=dtype), rtol=0, atol=2e-6)
    assert oo.distance(tall) < 2e-6


def test_distance_is_one_value_per_matrix():
    tensor = torch.zeros(5, 7, 3, 3)
    assert oo.distance(tensor, view="kernels").shape == (5, 7)
    assert oo.distance(tensor, view="filters").shape == ()
    assert oo.distance(tensor).shape == (5, 7)
    torch.testing.assert_close(oo.distance(tensor), torch.full((5, 7), 3**0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.complex128])
@pytest.mark.parametrize("view", views.VIEWS)
def test_project_is_idempotent_and_in_place(dtype, view):
    tensor = torch.randn(4, 4, 3, 3).to(dtype)
    assert oo.project_(tensor, view=view) is tensor
    once = tensor.clone()
    assert oo.is_orthogonal(tensor, view=view)
    oo.project_(tensor, view=view)
    torch.testing.assert_close(tensor, once, rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("call", [oo.project_, oo.distance, oo.orthogonalize_, oo.is_orthogonal])
def test_1x1_kernels_are_refused(call):
    with pytest.raises(ValueError, match=r"kernels 1×1: view 'kernels' would keep every single weight at modulus 1"):
        call(torch.ones(4, 3, 1, 1), view="kernels")


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32])
@pytest.mark.parametrize("init", ["project", "random"])
def test_dtypes_without_arithmetic_are_refused(dtype, init):
    tensor = torch.zeros(3, 3, dtype=dtype)
    for call in (oo.project_, oo.distance, lambda x: oo.orthogonalize_(x, init=init)):
        with pytest.raises(ValueError, match=f"has dtype {dtype}, which cannot be orthonormal: use one of float16, b"):
            call(tensor)


@pytest.mark.parametrize("init", ["project", "random"])
def test_a_tensor_without_values_is_refused(init):
    with pytest.raises(ValueError, match=r"is on the meta device and has no values: give it memory first"):
        oo.orthogonalize_(torch.empty(3, 3, device="meta"), init=init)
    with pytest.raises(ValueError, match=r"the tensor is on the meta device and has no values"):
        oo.is_orthogonal(torch.empty(3, 3, device="meta"))


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5, 3), (0, 4, 3, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_an_empty_batch_is_orthogonal(shape, dtype):
    tensor = torch.empty(shape, dtype=dtype)
    assert oo.distance(tensor).shape == shape[:-2]
    assert oo.is_orthogonal(tensor)
    assert oo.project_(tensor) is tensor
    assert oo.orthogonalize_(tensor, init="random").shape == shape


@given(
    p=st.integers(1, 60),
    more=st.integers(0, 20),
    rank=st.floats(0, 1),
    size=st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.complex64]),
)
def test_projection_warns_exactly_where_the_nearest_point_is_arbitrary(p, more, rank, size, dtype):
    n, r = p + more, round(rank * p)
    rows, columns = (oo.orthogonalize_(torch.empty(r, k, dtype=dtype), init="random") if r else None for k in (p, n))
    spectrum = torch.linspace(0.1, 1, r) * size
    tensor = torch.zeros(p, n, dtype=dtype) if r == 0 else (rows.mT * spectrum) @ columns
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        oo.project_(tensor)
    assert oo.is_orthogonal(tensor)
    messages = [str(each.message) for each in caught]
    expected = [] if r == p else ["has matrices without full rank (1 of them), whose nearest orthonormal matrix"]
    assert len(messages) == len(expected)
    assert all(part in message for part, message in zip(expected, messages, strict=True))


def test_the_warning_counts_the_matrices():
    tensor = torch.eye(3).repeat(5, 1, 1)
    tensor[1], tensor[3, 0] = 0, 0
    with pytest.warns(UserWarning, match=r"2 of them.*init='random'"):
        oo.project_(tensor)


def test_project_of_what_is_not_finite_changes_nothing():
    tensor = torch.tensor([[1.0, torch.nan]])
    with pytest.raises(ValueError, match="not finite"):
        oo.project_(tensor)
    assert tensor[0, 0] == 1


def test_is_orthogonal_takes_a_tolerance():
    tensor = torch.eye(3) * 1.01
    assert not oo.is_orthogonal(tensor)
    assert oo.is_orthogonal(tensor, tol=0.1)


def test_half_precision_noise_is_not_taken_for_orthogonality():
    assert not oo.is_orthogonal(torch.randn(512, 512, dtype=torch.bfloat16) / 512**0.5)
    assert oo.is_orthogonal(oo.project_(torch.randn(128, 128, dtype=torch.bfloat16)))


@pytest.mark.parametrize(
    ("shape", "view", "side", "message"),
    [
        ((3, 3), "matrices", "auto", "Invalid view: 'matrices'; choose one of matrix, filters, kernels"),
        ((3, 3), "matrix", "left", "Invalid side: 'left'; choose one of auto, rows, columns"),
        ((3,), "matrix", "auto", "has 1 dims, but a matrix has two"),
        (
            (3, 3),
            "kernels",
            "auto",
            "has 2 dims, but view 'kernels' is of the weights of convolutions, which have 3 to 5",
        ),
        ((7, 4), oo.View(split=(3, 3)), "auto", r"has 7 entries along dim 0, but the parts of split=\(3, 3\) have 6"),
        ((7, 4), oo.View(split=3), "auto", "has 7 entries along dim 0, which split=3 does not divide"),
        ((7, 4), oo.View(heads=3), "auto", "has a part of 7 entries along dim 0, which 3 heads do not divide"),
        ((7, 4, 3), oo.View("filters", groups=2), "auto", "7 entries along dim 0, which 2 groups do not divide"),
        ((2, 6, 4), oo.View(heads=2), "auto", r"of which View.* divides dim 0: only dim 1 or 2 is a matrix's"),
        ((6, 4), oo.View(heads=2, dim=3), "auto", "divides dim 3: only dim 0 or 1"),
        ((6, 2), oo.View(heads=2), "rows", "is seen as 3×2, whose rows are too many"),
        ((3, 0), "matrix", "auto", "has no entries"),
        ((3, 2), "matrix", "rows", "is seen as 3×2, whose rows are too many"),
        ((2, 1, 1), "filters", "rows", "is seen as 2×1, whose rows are too many"),
    ],
)
def test_what_cannot_be_seen_so_is_refused(shape, view, side, message):
    with pytest.raises(ValueError, match=message):
        views.View.of(view).parts(shape, side)


def test_project_of_integers_is_refused():
    with pytest.raises(ValueError, match=r"cannot project a tensor that has dtype torch\.int64"):
        oo.project_(torch.ones(2, 2, dtype=torch.int64))
