"""The landing polynomial P(λ) = ‖X⁺X⁺ᴴ − I‖_F² of X⁺ = M − λCM, C = MMᴴ − I, and its λ.

With t_k = tr Cᵏ,

    P(λ) = (t4+2t5+t6)λ⁴ − 4(t3+2t4+t5)λ³ + (4t2+10t3+6t4)λ² − 4(t2+t3)λ + t2  ≥ 0.

P is a sum of squares: real roots are generically absent, and every real root is at least double. Both solvers work in
z = 1/λ, where C → 0 is the harmless limit z²(z−2)² (in λ the leading coefficients vanish), and on C/‖C‖_F, so that
no coefficient underflows. Everything is elementwise on one scalar per matrix, in float64 (in float32 on devices that
have no more, with half of the digits): no branch, no host sync.
"""

import torch
from torch import Tensor

from orthoptim.stiefel.batches import norm
from orthoptim.tensors import widest_dtype

_POLISH = 3  # Newton steps after a closed form: each doubles the digits, and Cardano loses at most half of them


def quartic(c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Coefficients (a3, a2, a1, a0) of P as a monic polynomial of z = 1/λ, z⁴ + a3z³ + a2z² + a1z + a0.

    Costs two p×p products, O(p³) for each matrix.

    Args:
        c: C = MMᴴ − I, of shape (..., p, p).
    """
    wide = widest_dtype(c.device)
    size = norm(c)  # its squares may underflow
    unit = c / size.clamp_min(torch.finfo(size.dtype).tiny)[..., None, None]
    square = unit @ unit
    cube = square @ unit

    def trace(a: Tensor, b: Tensor) -> Tensor:
        return (a.conj() * b).real.sum((-2, -1)).to(wide)

    s = size.to(wide)
    t3 = s * trace(unit, square)
    t4 = s**2 * trace(square, square)
    t5 = s**3 * trace(square, cube)
    t6 = s**4 * trace(cube, cube)
    return -4 * (1 + t3), 4 + 10 * t3 + 6 * t4, -4 * (t3 + 2 * t4 + t5), t4 + 2 * t5 + t6


def root(c: Tensor) -> Tensor:
    """The paper's λ: the real part of the root of P nearest to the reals, on the branch near ½.

    The four roots are two conjugate pairs. One makes I − λC positive and tends to ½ with C; the other, near 2/‖C‖,
    flips the sign of M. The first has the larger |z|; from its factor z² + bz + d, λ = Re(1/z) = −b/(2d), a symmetric
    function of the pair and so accurate to u where each (double) root is only known to √u.

    Example:
        >>> root(torch.tensor([[0.25]]))  # (1 − 1/√1.25)/0.25
        tensor(0.4223)
    """
    a3, a2, a1, a0 = quartic(c)
    scale = _root_scale(a3, a2, a1, a0)
    a3, a2, a1, a0 = a3 / scale, a2 / scale**2, a1 / scale**3, a0 / scale**4
    b, d = _polish_factor(a3, a2, a1, a0, *larger_factor(a3, a2, a1, a0))
    return (-b / (2 * d) / scale).to(c.real.dtype)


def larger_factor(a3: Tensor, a2: Tensor, a1: Tensor, a0: Tensor) -> tuple[Tensor, Tensor]:
    """(b, d) of the factor z² + bz + d with the larger d = |z|² of a quartic with two pairs of conjugate roots."""
    # Ferrari: with z = y − a3/4 the factors are y² ± wy + (p/2 + m ∓ q/2w), w = √(2m), m the largest root of the
    # resolvent. That m pairs each root with its conjugate; the other two roots of the resolvent are negative.
    p = a2 - 3 * a3**2 / 8
    q = a1 - a3 * a2 / 2 + a3**3 / 8
    r = a0 - a3 * a1 / 4 + a3**2 * a2 / 16 - 3 * a3**4 / 256
    m = largest_cubic_root(p, p**2 / 4 - r, -(q**2) / 8).clamp_min(_tiny(p))
    w = torch.sqrt(2 * m)
    b, d = -w + a3 / 2, (p / 2 + m + q / (2 * w)) - w * a3 / 4 + a3**2 / 16
    other_b, other_d = w + a3 / 2, (p / 2 + m - q / (2 * w)) + w * a3 / 4 + a3**2 / 16
    return torch.where(d >= other_d, b, other_b), torch.maximum(d, other_d)


def argmin(c: Tensor) -> Tensor:
    """The λ that minimises P on the branch near ½: the least positive λ with P′(λ) = 0.

    Example:
        >>> argmin(torch.tensor([[0.25]]))
        tensor(0.4223)
    """
    a3, a2, a1, a0 = quartic(c)
    # z⁵·P′(1/z) up to sign: −a3·z³ − 2a2·z² − 3a1·z − 4a0; a3 < 0 always (t2 + t3 = tr C²(I+C) ≥ 0)
    a3 = a3.clamp_max(-_tiny(a3))
    z = largest_cubic_root(2 * a2 / a3, 3 * a1 / a3, 4 * a0 / a3)
    return (1 / z).to(c.real.dtype)


def largest_cubic_root(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The largest real root of z³ + az² + bz + c."""
    scale = torch.maximum(torch.maximum(a.abs(), b.abs().sqrt()), torch.pow(c.abs(), 1 / 3))
    scale = scale.clamp_min(_tiny(a) ** (1 / 3))  # whose cube does not underflow
    a, b, c = a / scale, b / scale**2, c / scale**3
    p = b - a**2 / 3
    q = 2 * a**3 / 27 - a * b / 3 + c
    discriminant = q**2 / 4 + p**3 / 27
    # three real roots: Viète's cosine
    radius = torch.sqrt((-p / 3).clamp_min(0))
    cosine = (-q / 2 / (radius**3).clamp_min(_tiny(a))).clamp(-1, 1)
    three = 2 * radius * torch.cos(torch.acos(cosine) / 3)
    # one real root: Cardano, from the cube root that does not cancel
    outer = q.abs() / 2 + torch.sqrt(discriminant.clamp_min(0))
    u = torch.where(q < 0, 1.0, -1.0) * torch.pow(outer, 1 / 3)
    one = u - p / (3 * torch.where(u == 0, 1.0, u))
    z = torch.where(discriminant < 0, three, one) - a / 3
    for _ in range(_POLISH):
        value = ((z + a) * z + b) * z + c
        slope = (3 * z + 2 * a) * z + b
        newton = z - value / torch.where(slope == 0, 1.0, slope)
        z = torch.where(_improves(newton, z, a, b, c), newton, z)
    return z * scale


def _tiny(a: Tensor) -> float:
    return torch.finfo(a.dtype).tiny


def _improves(new: Tensor, old: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    def residual(z: Tensor) -> Tensor:
        return (((z + a) * z + b) * z + c).abs()

    return residual(new) < residual(old)


def _root_scale(a3: Tensor, a2: Tensor, a1: Tensor, a0: Tensor) -> Tensor:
    """A bound on the moduli of the roots, so that the scaled coefficients are of order one."""
    bounds = torch.stack([a3.abs(), a2.abs().sqrt(), torch.pow(a1.abs(), 1 / 3), torch.pow(a0.abs(), 1 / 4)])
    return bounds.amax(0)


def _polish_factor(a3: Tensor, a2: Tensor, a1: Tensor, a0: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's method (Bairstow) on z⁴ + … = (z² + bz + d)(z² + ez + f) for the factor (b, d)."""
    for _ in range(_POLISH):
        e, f = a3 - b, a2 - d - b * (a3 - b)
        # remainder of the division, and its Jacobian
        r1, r0 = a1 - b * f - d * e, a0 - d * f
        j11, j12 = -f - b * (2 * b - a3) + d, b - e
        j21, j22 = -d * (2 * b - a3), 2 * d - a2 + b * e
        det = j11 * j22 - j12 * j21
        det = torch.where(det == 0, 1.0, det)
        b, d = b - (r1 * j22 - j12 * r0) / det, d - (j11 * r0 - j21 * r1) / det
    return b, d
