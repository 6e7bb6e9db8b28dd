"""Arithmetic on batches of matrices (..., p, n) and on the numbers of each, as each kind of device computes it fastest.

The numbers of a batch are tensors (B,), so that nothing waits for a GPU. Those of a single matrix on a CPU are
Python's: the same formulas, half the operations of torch.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from orthoptim import pointwise as kernels

P = ParamSpec("P")
T = TypeVar("T")

CPUS = frozenset({"cpu"})
"""Types of devices whose blocks fit a cache; the others are GPUs."""

TINY = 4
"""The largest n whose products are unrolled."""

SYMMETRIC_FROM = 256
"""The p from which symmetric products are taken by blocks, if there is work enough."""

PANEL = 256
"""Columns of a panel of :func:`hermitian` on a CPU, which computes products of two and more by half.

From four on it is faster than blocks: of XXᴴ in float32 by 4 % at 1024×1024 and by 15 % at 1500×2000 and 2000×2000.
"""

SYMMETRIC_BATCH_FROM = 128
"""The p from which those of several matrices with n ≥ 4p are cut once: 0.83 to 0.93 of the time on one or two threads,
but 1.3 for a single one on two."""

SYMMETRIC_WORK = 1 << 28
"""That is, multiply–adds: the blocks of less are too small for the threads, and to put them together costs more."""

SYMMETRIC_TILES = 512
"""On a GPU symmetric products are cut in four where each part has so many tiles of 128×128: four for each processor."""

Numbers = Any
"""One number per matrix: a tensor (B,), or a float where the batch is a single matrix on a CPU, :func:`is_single`."""


def is_gpu(device: str) -> bool:
    """Whether a type of devices is planned for as a GPU.

    Example:
        >>> is_gpu("cpu"), is_gpu("cuda"), is_gpu("mps")
        (False, True, True)
    """
    return device not in CPUS


def can_look(a: Tensor) -> bool:
    """Whether to look at values waits for nobody: on a CPU, outside of a graph."""
    return not torch.compiler.is_compiling() and type(a) is Tensor and a.is_cpu


def is_single(a: Tensor) -> bool:
    """Whether a batch is one matrix on a CPU; its numbers are then Python's, whose arithmetic takes no microseconds."""
    return a.shape[0] == 1 and can_look(a)


def pointwise(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function of :data:`Numbers` a single kernel on a GPU, see :mod:`orthoptim.pointwise`.

    Args:
        function: takes numbers by position and constants by keyword, and returns numbers. Pure, without branches that
            depend on values.

    Example:
        >>> @pointwise
        ... def shorter(length: Tensor, *, most: float) -> Tensor:
        ...     return length.clamp_max(most)
        >>> shorter(torch.tensor([1.0, 3.0]), most=2.0)
        tensor([1., 2.])
    """

    @functools.wraps(function)
    def call(*args: P.args, **constants: P.kwargs) -> T:
        first: Any = args[0]
        if isinstance(first, float) or first.device.type not in kernels.DEVICES:
            return function(*args, **constants)
        return kernels.compute(function, args, constants)

    return call


def at_least(a: Numbers, bound: float) -> Numbers:
    """The larger of both; NaN where the number is."""
    return a.clamp_min(bound) if isinstance(a, Tensor) else max(a, bound)


def at_most(a: Numbers, bound: float) -> Numbers:
    """The smaller of both; NaN where the number is."""
    return a.clamp_max(bound) if isinstance(a, Tensor) else min(a, bound)


def as_real(a: Tensor) -> Tensor:
    """The entries as real numbers, (..., p, n) or (..., p, n, 2): norms of complex tensors are 70 times slower."""
    return torch.view_as_real(a.resolve_conj()) if a.is_complex() else a


def max_entry(a: Tensor) -> Tensor:
    """Largest modulus of the real and imaginary parts, one value per matrix; not finite if any entry is not."""
    real = as_real(a)
    dims = tuple(range(a.ndim - 2, real.ndim))
    if is_gpu(a.device.type):
        largest: Tensor = torch.linalg.vector_norm(real, torch.inf, dim=dims)
        return largest
    # not the infinity norm, which is 16 times slower
    return real.abs().amax(dim=dims)


def square_norm(a: Tensor) -> Tensor:
    """‖A‖_F², one value per matrix."""
    if by_columns(a):
        a = a.mT
    if a.ndim == 3 and a.shape[-1] > TINY and not a.is_complex() and a.is_contiguous():
        norm: Tensor = torch.linalg.vector_norm(a, dim=(-2, -1))
        return norm * norm
    real = as_real(a)
    dims = tuple(range(a.ndim - 2, real.ndim))
    tiny = a.shape[-1] * a.shape[-2] <= TINY**2 and not is_gpu(a.device.type)
    if tiny and a.ndim == 3 and a.stride(0) == 1 < len(a):  # the batch last in memory: no pass to write squares
        first, *others = real.flatten(1).unbind(1)
        total = first.square()
        for entry in others:
            total.addcmul_(entry, entry)
        return total
    if not real.is_contiguous() and not is_gpu(a.device.type):  # where vector_norm is a hundred times slower
        return real.square().sum(dims)
    size: Tensor = torch.linalg.vector_norm(real, dim=dims)
    return size.square()


def square_norms(a: Tensor, on_host: bool) -> Numbers:
    """‖A‖_F² of each matrix of a batch (B, p, n), as :data:`Numbers`: Python's ``on_host``."""
    if not on_host:
        return square_norm(a)
    size: float = torch.linalg.vector_norm(as_real(a) if a.is_complex() else a).item()
    return size * size


def lerp(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """A + weight·(B − A); of complex tensors through their real parts, five times faster."""
    if not a.is_complex():
        return a.lerp(b, weight)
    return torch.view_as_complex(as_real(a).lerp(as_real(b), weight))


def norm(a: Tensor) -> Tensor:
    """Frobenius norm, one value per matrix; overflows only where it must."""
    size = max_entry(a).clamp_min(torch.finfo(a.real.dtype).tiny)
    unit: Tensor = torch.linalg.matrix_norm(a / size[..., None, None])
    return unit * size


def symmetric(x: Tensor) -> Tensor:
    """XXᴴ by blocks: the upper half is the adjoint of the lower, which saves up to half of the product."""
    p, n = x.shape[-2:]
    if p >= 4 * PANEL and x.ndim == 3 and can_look(x):
        return hermitian(x, x)
    levels = symmetric_levels(x.shape[:-2].numel(), p, n, x.device.type) if p >= SYMMETRIC_BATCH_FROM else 0
    return _symmetric(x, levels)


def _symmetric(x: Tensor, levels: int) -> Tensor:
    if levels == 0:
        return torch.bmm(x, x.mH) if x.ndim == 3 else x @ x.mH
    half = x.shape[-2] // 2
    upper, lower = x[..., :half, :], x[..., half:, :]
    rows = lower @ x.mH if levels == 1 else torch.cat([lower @ upper.mH, _symmetric(lower, levels - 1)], -1)
    return torch.cat([torch.cat([_symmetric(upper, levels - 1), rows[..., :half].mH], -1), rows], -2)


def symmetric_levels(batch: int, p: int, n: int, device: str = "cpu") -> int:
    """How often a product of symmetric result is cut in four.

    Example:
        >>> [symmetric_levels(*shape) for shape in ((1, 1500, 2000), (1, 1500, 2000, "cuda"), (8, 4096, 4096, "cuda"))]
        [2, 0, 1]
        >>> symmetric_levels(3, 128, 512)
        1
    """
    if is_gpu(device):
        return int(batch * (p // 256) ** 2 >= SYMMETRIC_TILES)
    if p >= SYMMETRIC_FROM and p * batch * p * n >= SYMMETRIC_WORK:
        return 2
    return int(batch > 1 and p >= SYMMETRIC_BATCH_FROM and n >= 4 * p)


def by_columns(a: Tensor) -> bool:
    """Whether the entries fill a stretch of memory in the order of columns, as after ``qr``, and not of rows."""
    return a.ndim >= 2 and not a.is_contiguous() and a.mT.is_contiguous()


def product(a: Tensor, x: Tensor) -> Tensor:
    """AX, which lies in memory as X does: to add matrices that lie otherwise takes six times as long."""
    return torch.bmm(x.mT, a.mT).mT if by_columns(x) else torch.bmm(a, x)


def add_product(m: Tensor, a: Tensor, x: Tensor, alpha: float = 1, out: Tensor | None = None) -> Tensor:
    """M + αAX, which lies in memory as M does; in the memory of ``out``."""
    if not by_columns(m):
        return torch.baddbmm(m, a, x, alpha=alpha, out=out)
    return torch.baddbmm(m.mT, x.mT, a.mT, alpha=alpha, out=None if out is None else out.mT).mT


def hermitian(left: Tensor, right: Tensor, sign: int = 1) -> Tensor:
    """LRᴴ (B, p, p), known to be Hermitian (sign 1) or skew-Hermitian (sign −1), the latter exactly.

    Of large ones half is computed: columns from the diagonal on, in panels, which are mirrored.

    Example:
        >>> a = torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]])
        >>> hermitian(a, a)
        tensor([[[1., 0.],
                 [0., 1.]]])
    """
    p, width = left.shape[-2], _panel_width(left)
    if width == p:
        whole = left @ right.mH
        return whole if sign > 0 else (whole - whole.mH).mul_(0.5)
    out = left.new_empty(*left.shape[:-1], p)
    if is_gpu(left.device.type):
        _write_panels(out, left, right, width, sign)
        return out
    for matrices in zip(out, left, right, strict=True):  # torch reads rows of a matrix in place, but copies a batch's
        _write_panels(*matrices, width, sign)
    return out


def _write_panels(out: Tensor, left: Tensor, right: Tensor, width: int, sign: int) -> None:
    p = out.shape[-1]
    for start in range(0, p, width):
        end = min(start + width, p)
        torch.matmul(left[..., start:, :], right[..., start:end, :].mH, out=out[..., start:, start:end])
        if sign < 0:
            corner = out[..., start:end, start:end]
            corner.copy_((corner - corner.mH).mul_(0.5))
        if end < p:
            mirrored = out[..., end:, start:end].mH
            out[..., start:end, end:].copy_(mirrored if sign > 0 else mirrored.neg())


def _panel_width(a: Tensor) -> int:
    p, device = a.shape[-2], a.device.type
    if is_gpu(device):
        return -(-p // (1 + symmetric_levels(len(a), p, p, device)))
    return PANEL if p >= 2 * PANEL and not torch.compiler.is_compiling() else p


def trace(a: Tensor) -> Tensor:
    """That of Hermitian matrices, one value per matrix."""
    return a.diagonal(dim1=-2, dim2=-1).real.sum(-1)


def subtract_identity(a: Tensor) -> Tensor:
    """A − I, written into A itself (which must be a fresh product)."""
    a.diagonal(dim1=-2, dim2=-1).sub_(1)
    return a


def where(condition: Tensor, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The matrices a where the condition holds, else b; in the memory of ``out``, one of both."""
    condition = condition.reshape(-1, *[1] * (a.ndim - 1))
    if torch.compiler.is_compiling() or a.dtype != b.dtype:
        return torch.where(condition, a, b)
    if _widens(a) and _widens(b):
        wide = torch.complex128
        chosen = torch.where(condition, a.view(wide), b.view(wide), out=None if out is None else out.view(wide))
        return chosen.view(a.dtype) if out is None else out
    return torch.where(condition, a, b, out=out)


def _widens(a: Tensor) -> bool:
    """Whether matrices can be seen with entries of 16 bytes.

    On a CPU choosing goes entry by entry: of floats it costs four times an addition, of the widest entries once.
    """
    wide = 16 // a.itemsize
    return (
        a.ndim == 3
        and a.numel() > 0
        and a.device.type == "cpu"
        and a.is_contiguous()
        and a.shape[-1] % wide == 0
        and a.storage_offset() % wide == 0
        and all(step % wide == 0 for step in a.stride()[:-1])  # of a single matrix, or row, it may be anything
        and not a.is_conj()
    )
