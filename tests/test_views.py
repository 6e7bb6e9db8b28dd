"""Views: a parameter as matrices and back."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim import views

SHAPES = st.lists(st.integers(0, 5), min_size=2, max_size=5).map(tuple)


@given(shape=SHAPES, view=st.sampled_from(views.VIEWS), side=st.sampled_from(views.SIDES))
def test_there_and_back(shape, view, side):
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    try:
        matrices = views.to_matrices(tensor, view, side)
    except ValueError:
        rows, columns = (shape[0], torch.Size(shape[1:]).numel()) if view == "filters" else shape[-2:]
        impossible = (side == "rows" and rows > columns) or (side == "columns" and columns > rows)
        no_kernels = view == "kernels" and (len(shape) != 4 or rows == columns == 1)
        assert impossible or no_kernels or rows == 0 or columns == 0
        return
    assert matrices.shape[-2] <= matrices.shape[-1]
    assert torch.equal(views.from_matrices(matrices, tensor.shape, view, side), tensor)
    assert matrices.data_ptr() == tensor.data_ptr()  # a view: contiguous tensors are not copied


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
        ((3, 3), "kernels", "auto", "has 2 dims, but view 'kernels' is of 4-d weights"),
        ((3, 0), "matrix", "auto", "has no entries"),
        ((3, 2), "matrix", "rows", "is seen as 3×2, whose rows are too many"),
        ((2, 1, 1), "filters", "rows", "is seen as 2×1, whose rows are too many"),
    ],
)
def test_what_cannot_be_seen_so_is_refused(shape, view, side, message):
    with pytest.raises(ValueError, match=message):
        views.matrix_shape(torch.Size(shape), view, side)


def test_project_of_integers_is_refused():
    with pytest.raises(ValueError, match=r"cannot project a tensor that has dtype torch\.int64"):
        oo.project_(torch.ones(2, 2, dtype=torch.int64))
