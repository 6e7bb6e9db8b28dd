"""A parameter tensor as a batch of matrices (..., p, n) with p ≤ n and orthonormal rows, and back."""

from typing import Literal, get_args

import torch
from torch import Tensor

View = Literal["matrix", "filters", "kernels"]
"""``matrix``: the last two dims. ``filters``: the first dim against the rest. ``kernels``: the k×k of a 4-d weight."""

Side = Literal["auto", "rows", "columns"]
"""Which side is orthonormal: ``auto`` is the shorter one."""

VIEWS: tuple[str, ...] = get_args(View)
SIDES: tuple[str, ...] = get_args(Side)


def matrix_shape(shape: torch.Size, view: str, side: str) -> tuple[torch.Size, int, int, bool]:
    """Batch shape, p, n, and whether the matrices are transposed in the tensor.

    The batch may be empty, the matrices may not.

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
    if view == "filters":
        batch, rows, columns = torch.Size(), shape[0], shape[1:].numel()
    else:
        batch, rows, columns = shape[:-2], shape[-2], shape[-1]
    if rows == 0 or columns == 0:
        raise ValueError(f"has no entries: it is seen as {rows}×{columns}")
    if view == "kernels" and rows == columns == 1:
        raise ValueError(
            "has kernels 1×1: view 'kernels' would keep every single weight at modulus 1 (±1 if it is real) for ever; "
            "use 'filters'"
        )
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
