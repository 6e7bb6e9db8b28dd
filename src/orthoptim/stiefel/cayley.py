"""The Cayley transform as a step: X⁺ = X(I − ½W)(I + ½W)⁻¹ with W skew-Hermitian and XW the tangent step.

It rotates X exactly. By solving, it costs a system of p×p for square X, else of 2p×2p (W has rank 2p). By iterating
Y ← X − ½(X + Y)W it costs products alone, and converges while ‖W‖ < 2; after k iterations the error is of order
‖W‖^(k+2), and so is the distance from the manifold, which one Newton–Schulz step then squares.
"""

import torch
from torch import Tensor

from orthoptim.stiefel.geometry import skew
from orthoptim.stiefel.points import newton_schulz_step

_ITERATIONS = 2
_CONTRACTION = 1.0  # ‖W‖, at most, of a step by iteration


def cayley(x: Tensor, d: Tensor, length: Tensor) -> Tensor:
    """The step from X (B, p, n) on the manifold along −length·D, D tangent, by solving.

    Args:
        x: the point.
        d: the tangent direction.
        length: a number for each matrix, (B, 1, 1), or one for all.
    """
    p, n = x.shape[-2:]
    if p == n:  # XW = KX with K = DXᴴ
        half = (0.5 * length) * skew(d @ x.mH)
        identity = torch.eye(p, dtype=x.dtype, device=x.device)
        return newton_schulz_step(torch.linalg.solve(identity + half, x - half @ x))
    inner = _inner(x, d)
    left, right = torch.cat([x, -inner], -2), torch.cat([inner, x], -2)  # W = leftᴴ·right
    identity = torch.eye(2 * p, dtype=x.dtype, device=x.device)
    system = identity + (0.5 * length) * (right @ left.mH)
    return newton_schulz_step(x - (x @ left.mH) @ torch.linalg.solve(system, length * right))


def cayley_iterative(x: Tensor, d: Tensor, length: Tensor) -> Tensor:
    """The same by two fixed-point iterations; steps too long for these to contract are shortened."""
    inner = _inner(x, d)
    # ‖W‖₂ ≤ 2‖inner‖_F
    size = 2 * torch.linalg.vector_norm(inner, dim=(-2, -1), keepdim=True)
    length = torch.minimum(length.abs(), _CONTRACTION / size.clamp_min(torch.finfo(size.dtype).tiny)) * length.sign()
    y = x - length * d
    for _ in range(_ITERATIONS):
        mean = 0.5 * length * (x + y)
        y = x - (mean @ x.mH) @ inner + (mean @ inner.mH) @ x
    return newton_schulz_step(y)


def _inner(x: Tensor, d: Tensor) -> Tensor:
    """D′ with W = XᴴD′ − D′ᴴX and XW = D on the manifold."""
    return d - 0.5 * (d @ x.mH) @ x


CAYLEY = {"cayley": cayley, "cayley-iterative": cayley_iterative}
