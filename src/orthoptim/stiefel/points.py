"""Points of the manifold: random ones, the nearest one, and a nearby one by products alone."""

import torch
from torch import Tensor

from orthoptim.stiefel.geometry import defect


def random(
    *shape: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Uniformly (Haar) distributed matrices of shape (..., p, n).

    Example:
        >>> x = random(5, 2, 3, generator=torch.Generator().manual_seed(0))
        >>> bool((defect(x).abs() < 1e-6).all())
        True
    """
    gaussian = torch.randn(*shape, dtype=dtype, device=device, generator=generator)
    return newton_schulz_step(row_qr(gaussian))


def row_qr(y: Tensor) -> Tensor:
    """The orthonormal rows Qᴴ of the thin factorization Yᴴ = QR whose R has a positive diagonal.

    The phases matter: without them Q is neither Haar-distributed for a Gaussian Y nor continuous in Y.
    """
    return row_qr_factors(y)[0]


def row_qr_factors(y: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of :func:`row_qr`, and the diagonal of R, (..., p) and real."""
    q, r = torch.linalg.qr(y.mH)
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    phase = torch.where(diagonal == 0, 1, torch.sgn(diagonal))
    return (q * phase[..., None, :]).mH, diagonal.abs()


def nearest(y: Tensor) -> Tensor:
    """The nearest point of the manifold: the polar factor UVᴴ of Y = UΣVᴴ, for any Y.

    Where Y does not have full rank there are many nearest points, and this is one of them.

    Example:
        >>> nearest(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """
    u, _, vh = torch.linalg.svd(y, full_matrices=False)
    # LAPACK's U and V are orthonormal to a few u·√p each; one step squares what is left
    return newton_schulz_step(u @ vh)


def newton_schulz_step(y: Tensor) -> Tensor:
    """One step Y − ½(YYᴴ − I)Y towards the polar factor; it converges from ‖YYᴴ‖₂ < 3."""
    return y - 0.5 * defect(y) @ y


def newton_schulz(y: Tensor, steps: int = 12) -> Tensor:
    """Polar factor of a nearly orthogonal Y: twelve steps are enough from ‖YYᴴ − I‖₂ ≤ 0.9."""
    for _ in range(steps):
        y = newton_schulz_step(y)
    return y
