"""Views: a parameter as matrices and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim import views

SHAPES = st.lists(st.integers(1, 5), min_size=2, max_size=5).map(tuple)


@given(shape=SHAPES, view=st.sampled_from(views.VIEWS), side=st.sampled_from(views.SIDES))
def test_there_and_back(shape, view, side):
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    try:
        matrices = views.to_matrices(tensor, view, side)
    except ValueError:
        rows, columns = (shape[0], torch.Size(shape[1:]).numel()) if view == "filters" else shape[-2:]
        impossible = (side == "rows" and rows > columns) or (side == "columns" and columns > rows)
        assert impossible or (view == "kernels" and len(shape) != 4)
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
