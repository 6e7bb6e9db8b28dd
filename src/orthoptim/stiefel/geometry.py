"""The geometry of the Stiefel manifold {X of shape (..., p, n), p ≤ n : XXᴴ = I}.

Every function takes batches of matrices, real or complex, on or off the manifold.
"""

import torch
from torch import Tensor

from orthoptim.stiefel.batches import subtract_identity


def sym(a: Tensor) -> Tensor:
    """Hermitian part ½(A + Aᴴ) of square matrices."""
    return 0.5 * (a + a.mH)


def skew(a: Tensor) -> Tensor:
    """Skew-Hermitian part ½(A − Aᴴ) of square matrices."""
    return 0.5 * (a - a.mH)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Real inner product ⟨A, B⟩ = Re Σ conj(A)∘B, one value per matrix."""
    return (a.conj() * b).real.sum((-2, -1))


def is_scaled(square: Tensor, p: int) -> Tensor:
    """Whether ‖X‖_F² is not p, by more than rounding to half precision explains: somebody wrote another matrix there.

    Example:
        >>> from orthoptim.stiefel import square_norm
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
