"""The geometry of the Stiefel manifold {X of shape (..., p, n), p ≤ n : XXᴴ = I}.

Every function takes batches of matrices, real or complex, on or off the manifold.
"""

import math
from typing import Any

import torch
from torch import Tensor

from orthoptim.stiefel.cost_model import TINY, is_gpu

Numbers = Any
"""One number per matrix: a tensor (B,), or a float where the batch is a single matrix on a CPU, :func:`is_single`."""


def can_look(a: Tensor) -> bool:
    """Whether to look at values waits for nobody: on a CPU, outside of a graph."""
    return not torch.compiler.is_compiling() and type(a) is Tensor and a.is_cpu


def is_single(a: Tensor) -> bool:
    """Whether a batch is one matrix on a CPU; its numbers are then Python's, whose arithmetic takes no microseconds."""
    return a.shape[0] == 1 and can_look(a)


def at_least(a: Numbers, bound: float) -> Numbers:
    """The larger of both; NaN where the number is."""
    return a.clamp_min(bound) if isinstance(a, Tensor) else max(a, bound)


def at_most(a: Numbers, bound: float) -> Numbers:
    """The smaller of both; NaN where the number is."""
    return a.clamp_max(bound) if isinstance(a, Tensor) else min(a, bound)


def inverse_root(a: Numbers) -> Numbers:
    """1/√a of positive numbers."""
    return a.rsqrt() if isinstance(a, Tensor) else 1 / math.sqrt(a)


def sym(a: Tensor) -> Tensor:
    """Hermitian part ½(A + Aᴴ) of square matrices."""
    return 0.5 * (a + a.mH)


def skew(a: Tensor) -> Tensor:
    """Skew-Hermitian part ½(A − Aᴴ) of square matrices."""
    return 0.5 * (a - a.mH)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Real inner product ⟨A, B⟩ = Re Σ conj(A)∘B, one value per matrix."""
    return (a.conj() * b).real.sum((-2, -1))


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


def square_norms(a: Tensor) -> Numbers:
    """‖A‖_F² of each matrix of a batch (B, p, n), as :data:`Numbers`."""
    if not is_single(a):
        return square_norm(a)
    size: float = torch.linalg.vector_norm(as_real(a)).item()
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


def is_scaled(square: Tensor, p: int) -> Tensor:
    """Whether ‖X‖_F² is not p, by more than rounding to half precision explains: somebody wrote another matrix there.

    Example:
        >>> is_scaled(square_norm(torch.stack([torch.eye(2), 3 * torch.eye(2)])), 2)
        tensor([False,  True])
    """
    return ~((square / p - 1).abs() <= 0.05)  # also where it is not a number


def relative_gradient(x: Tensor, g: Tensor) -> Tensor:
    """Relative gradient R = X Skew(XᴴG) = ½[(XXᴴ)G − (XGᴴ)X].

    Example:
        >>> x, g = torch.eye(2, 3), torch.ones(2, 3)
        >>> relative_gradient(x, g)
        tensor([[0.0000, 0.0000, 0.5000],
                [0.0000, 0.0000, 0.5000]])
    """
    return 0.5 * ((x @ x.mH) @ g - (x @ g.mH) @ x)


def subtract_identity(a: Tensor) -> Tensor:
    """A − I, written into A itself (which must be a fresh product)."""
    a.diagonal(dim1=-2, dim2=-1).sub_(1)
    return a


def defect(x: Tensor) -> Tensor:
    """C = XXᴴ − I, of shape (..., p, p)."""
    return subtract_identity(x @ x.mH)


def is_deficient(x: Tensor) -> Tensor:
    """Whether a matrix does not have full rank, up to rounding; one value per matrix. Waits for the device.

    Example:
        >>> is_deficient(torch.tensor([[[1.0, 2.0], [1.0, 2.0]], [[1.0, 2.0], [2.0, 1.0]]]))
        tensor([ True, False])
    """
    values: Tensor = torch.linalg.svdvals(x.nan_to_num(0.0, 0.0, 0.0))
    return values[..., -1] <= x.shape[-2] * (torch.finfo(values.dtype).eps / 2) * values[..., 0]


def distance(x: Tensor) -> Tensor:
    """Distance to the manifold ‖XXᴴ − I‖_F, one value per matrix.

    Example:
        >>> distance(2 * torch.eye(1, 3))
        tensor(3.)
    """
    norm: Tensor = torch.linalg.matrix_norm(defect(x))
    return norm
