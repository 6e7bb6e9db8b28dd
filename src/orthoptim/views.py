"""A parameter tensor as a batch of matrices (..., p, n) with p ≤ n and orthonormal rows, and back."""

from types import ModuleType
from typing import Literal, get_args

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.distributed.detect import is_dtensor

View = Literal["matrix", "filters", "kernels"]
"""``matrix``: the last two dims. ``filters``: the first dim against the rest. ``kernels``: the k×k of a 4-d weight."""

Side = Literal["auto", "rows", "columns"]
"""Which side is orthonormal: ``auto`` is the shorter one."""

VIEWS: tuple[str, ...] = get_args(View)
SIDES: tuple[str, ...] = get_args(Side)

_COMPUTE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}  # torch.compile does not trace dtype.to_real


def matrix_shape(shape: torch.Size, view: str, side: str) -> tuple[torch.Size, int, int, bool]:
    """Batch shape, p, n, and whether the matrices are transposed in the tensor.

    Raises:
        ValueError: if a tensor of this shape cannot be seen so.

    Example:
        >>> matrix_shape(torch.Size([8, 4, 3, 3]), "filters", "auto")
        (torch.Size([]), 8, 36, False)
    """
    if view not in VIEWS:
        raise ValueError(f"Invalid view: {view!r}; choose one of {', '.join(VIEWS)}")
    if side not in SIDES:
        raise ValueError(f"Invalid side: {side!r}; choose one of {', '.join(SIDES)}")
    if len(shape) < 2:
        raise ValueError(
            f"has {len(shape)} dims, but a matrix has two: leave it to an ordinary group "
            "(a pattern such as 'attn.*weight' leaves biases out)"
        )
    if view == "kernels" and len(shape) != 4:
        raise ValueError(f"has {len(shape)} dims, but view 'kernels' is of 4-d weights: use 'matrix' or 'filters'")
    if shape.numel() == 0:
        raise ValueError("has no entries")
    if view == "filters":
        batch, rows, columns = torch.Size(), shape[0], shape[1:].numel()
    else:
        batch, rows, columns = shape[:-2], shape[-2], shape[-1]
    if (side == "rows" and rows > columns) or (side == "columns" and columns > rows):
        raise ValueError(f"is seen as {rows}×{columns}, whose {side} are too many to be orthonormal: use side 'auto'")
    transposed = side == "columns" or (side == "auto" and rows > columns)
    p, n = (columns, rows) if transposed else (rows, columns)
    return batch, p, n, transposed


def to_matrices(tensor: Tensor, view: str = "matrix", side: str = "auto") -> Tensor:
    """The tensor as matrices (..., p, n) with orthonormal rows: a view where strides allow.

    A transpose (not an adjoint) turns orthonormal columns into orthonormal rows, for complex entries too.
    """
    batch, p, n, transposed = matrix_shape(tensor.shape, view, side)
    shape = (n, p) if transposed else (p, n)
    matrices = tensor.reshape(*batch, *shape)
    return matrices.mT if transposed else matrices


def from_matrices(matrices: Tensor, shape: torch.Size, view: str = "matrix", side: str = "auto") -> Tensor:
    """The inverse of :func:`to_matrices`, for a tensor of the given shape."""
    transposed = matrix_shape(shape, view, side)[3]
    return (matrices.mT if transposed else matrices).reshape(shape)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half precision, else the same."""
    return _COMPUTE.get(dtype, dtype)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real part."""
    return _REAL.get(dtype, dtype)


def full_precision(tensor: Tensor) -> torch.autocast:
    """A context in which autocast, which would round the products, is off."""
    return torch.autocast("cpu" if tensor.is_meta else tensor.device.type, enabled=False)  # there is none of meta


def placed() -> ModuleType:
    """What is done to DTensors, imported where there is one."""
    from orthoptim.distributed import points

    return points


@torch.no_grad()
def distance(tensor: Tensor, *, view: View = "matrix", side: Side = "auto") -> Tensor:
    """Distance ‖XXᴴ − I‖_F from orthonormality, one value per matrix.

    Of a DTensor, all ranks must ask, and are told the distances of all matrices.

    Example:
        >>> distance(torch.eye(3))
        tensor(0.)
    """
    with full_precision(tensor):
        if is_dtensor(tensor):
            distances: Tensor = placed().distance(tensor, view, side)
            return distances
        return stiefel.distance(to_matrices(tensor.detach(), view, side).to(compute_dtype(tensor.dtype)))


@torch.no_grad()
def is_orthogonal(tensor: Tensor, *, view: View = "matrix", side: Side = "auto", tol: float | None = None) -> bool:
    """Whether every matrix is orthonormal up to ``tol`` (default: what rounding explains, 10·u·p).

    Example:
        >>> is_orthogonal(torch.eye(3)), is_orthogonal(torch.ones(3, 3))
        (True, False)
    """
    p = matrix_shape(tensor.shape, view, side)[1]
    limit = rounding(tensor.dtype, p) if tol is None else tol
    return bool((distance(tensor, view=view, side=side) <= limit).all())


def rounding(dtype: torch.dtype, p: int) -> float:
    """The distance that rounding alone explains, 10·u·p; in half precision that can be all or nothing, so at most ½."""
    return min(10 * (torch.finfo(dtype).eps / 2) * p, 0.5)


@torch.no_grad()
def project_(tensor: Tensor, *, view: View = "matrix", side: Side = "auto") -> Tensor:
    """Replace every matrix by the nearest orthonormal one, in place.

    Example:
        >>> project_(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(f"cannot project a tensor of dtype {tensor.dtype}: use a floating or complex one")
    if not is_finite(tensor):
        raise ValueError("cannot project a tensor that is not finite")
    with full_precision(tensor):
        if is_dtensor(tensor):
            placed().project_(tensor, view, side)
        else:
            matrices = to_matrices(tensor.detach(), view, side).to(compute_dtype(tensor.dtype))
            tensor.copy_(from_matrices(stiefel.nearest(matrices), tensor.shape, view, side))
    return tensor


@torch.no_grad()
def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite, on all ranks that share the tensor."""
    if is_dtensor(tensor):
        return bool(placed().is_finite(tensor))
    return bool(torch.isfinite(tensor).all())
