"""A parameter tensor as a batch of matrices (..., p, n) with p ≤ n and orthonormal rows, and back."""

from types import ModuleType
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.distributed.detect import is_dtensor
from orthoptim.user_warnings import warn_user

View = Literal["matrix", "filters", "kernels"]
"""``matrix``: the last two dims. ``filters``: the first dim against the rest. ``kernels``: the k×k of a 4-d weight."""

Side = Literal["auto", "rows", "columns"]
"""Which side is orthonormal: ``auto`` is the shorter one."""

VIEWS: tuple[str, ...] = get_args(View)
SIDES: tuple[str, ...] = get_args(Side)

TensorT = TypeVar("TensorT", bound=Tensor)

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""What entries may be: dtypes that can be computed in, or cast to one that can without loss."""

_COMPUTE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}  # torch.compile does not trace dtype.to_real


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


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half precision, else the same."""
    return _COMPUTE.get(dtype, dtype)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real part."""
    return _REAL.get(dtype, dtype)


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse entries that are no numbers to compute with.

    Raises:
        ValueError: for integers, and for floats of 8 bits and complex numbers of 32, which have no arithmetic.
    """
    if dtype not in DTYPES:
        known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise ValueError(f"has dtype {dtype}, which cannot be orthonormal: use one of {known}")


def check_values(tensor: Tensor) -> None:
    """Refuse to look at, or to write, matrices that are not there.

    Raises:
        ValueError: for a dtype as in :func:`check_dtype`, and for tensors on the meta device.
    """
    check_dtype(tensor.dtype)
    if tensor.is_meta:
        raise ValueError(
            "is on the meta device and has no values: give it memory first, as by module.to_empty(device=...)"
        )


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
    try:
        check_dtype(tensor.dtype)
    except ValueError as error:
        raise ValueError(f"the tensor {error}") from None
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
def project_(tensor: TensorT, *, view: View = "matrix", side: Side = "auto") -> TensorT:
    """Replace every matrix by the nearest orthonormal one, in place.

    Warns where a matrix does not have full rank: its nearest orthonormal matrix is then an arbitrary one of many.

    Example:
        >>> project_(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """
    try:
        check_values(tensor)
        matrix_shape(tensor.shape, view, side)
        if not is_finite(tensor):
            raise ValueError("is not finite")
    except ValueError as error:
        raise ValueError(f"cannot project a tensor that {error}") from None
    deficient = project_counting_(tensor, view, side)
    if deficient:
        warn_user(f"the tensor {RANK_DEFICIENT.format(deficient)}")
    return tensor


RANK_DEFICIENT = (
    "has matrices without full rank ({} of them), whose nearest orthonormal matrix is arbitrary: "
    "orthogonalize_(..., init='random') draws one instead"
)


@torch.no_grad()
def project_counting_(tensor: Tensor, view: str, side: str) -> int:
    """:func:`project_` without its checks; returns how many matrices do not have full rank, up to rounding."""
    with full_precision(tensor):
        if is_dtensor(tensor):
            matrices = placed().whole_matrices(tensor, view, side)
        else:
            matrices = to_matrices(tensor.detach(), view, side).to(compute_dtype(tensor.dtype))
        nearest = stiefel.nearest(matrices)
        # the polar factor H of Y = HX has the singular values of Y as its eigenvalues, and is only p×p
        size = stiefel.max_entry(matrices).clamp_min(torch.finfo(real_dtype(matrices.dtype)).tiny)
        values = torch.linalg.eigvalsh(stiefel.sym((matrices / size[..., None, None]) @ nearest.mH))
        limit = 10 * torch.finfo(values.dtype).eps * values[..., -1].abs()
        deficient = int((values[..., 0] <= limit).sum())
        if is_dtensor(tensor):
            placed().write_matrices_(tensor, nearest, view, side)
        else:
            tensor.copy_(from_matrices(nearest, tensor.shape, view, side))
    return deficient


@torch.no_grad()
def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite, on all ranks that share the tensor."""
    if is_dtensor(tensor):
        return bool(placed().is_finite(tensor))
    return bool(torch.isfinite(tensor).all())
