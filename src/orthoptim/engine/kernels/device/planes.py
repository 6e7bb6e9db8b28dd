"""Matrices as tuples of planes: the real part alone, or the real and the imaginary part.

Products are IEEE float32 whatever TF32 is set to: ``input_precision="ieee"``.
"""

import triton
import triton.language as tl


@triton.jit
def dot(a, b, more=None):
    """The product of two planes, and ``more``."""
    return tl.dot(a, b, more, input_precision="ieee")


@triton.jit
def product(a, b, COMPLEX: tl.constexpr):
    """AB."""
    if COMPLEX:
        return dot(a[0], b[0], dot(-a[1], b[1])), dot(a[0], b[1], dot(a[1], b[0]))
    else:
        return (dot(a[0], b[0]),)


@triton.jit
def product_adjoint(a, b, COMPLEX: tl.constexpr):
    """ABᴴ."""
    if COMPLEX:
        br, bi = tl.trans(b[0]), tl.trans(b[1])
        return dot(a[0], br, dot(a[1], bi)), dot(a[1], br, dot(-a[0], bi))
    else:
        return (dot(a[0], tl.trans(b[0])),)


@triton.jit
def adjoint(a, COMPLEX: tl.constexpr):
    """Aᴴ."""
    if COMPLEX:
        return tl.trans(a[0]), -tl.trans(a[1])
    else:
        return (tl.trans(a[0]),)


@triton.jit
def combine(a, factor, b, other, COMPLEX: tl.constexpr):
    """Factor·A + other·B, with real factors."""
    if COMPLEX:
        return factor * a[0] + other * b[0], factor * a[1] + other * b[1]
    else:
        return (factor * a[0] + other * b[0],)


@triton.jit
def times(a, factor, COMPLEX: tl.constexpr):
    """Factor·A, with a real factor."""
    if COMPLEX:
        return a[0] * factor, a[1] * factor
    else:
        return (a[0] * factor,)


@triton.jit
def add_multiple(a, shift, identity, COMPLEX: tl.constexpr):
    """A + shift·I."""
    if COMPLEX:
        return a[0] + shift * identity, a[1]
    else:
        return (a[0] + shift * identity,)


@triton.jit
def square_norm(a, COMPLEX: tl.constexpr):
    """‖A‖_F²."""
    if COMPLEX:
        return tl.sum(a[0] * a[0] + a[1] * a[1])
    else:
        return tl.sum(a[0] * a[0])


@triton.jit
def trace(a, identity):
    """The trace of a Hermitian matrix, which is real."""
    return tl.sum(a[0] * identity)


@triton.jit
def landing(c, rho, lands, identity, STEPS: tl.constexpr, COMPLEX: tl.constexpr):
    """Q with X⁺ = M + QM after STEPS Newton–Schulz steps from ρM: see :func:`orthoptim.stiefel.policies.land`."""
    square = rho * rho
    d = add_multiple(times(c, lands * square, COMPLEX), lands * (square - 1.0), identity, COMPLEX)
    q = times(d, -0.5, COMPLEX)
    for _ in tl.static_range(STEPS - 1):
        dd = product(d, d, COMPLEX)
        d = combine(dd, -0.75, product(dd, d, COMPLEX), 0.25, COMPLEX)
        qd = product(q, d, COMPLEX)
        q = combine(q, 1.0, combine(d, 1.0, qd, 1.0, COMPLEX), -0.5, COMPLEX)
    return add_multiple(times(q, rho, COMPLEX), rho - 1.0, identity, COMPLEX)


@triton.jit
def load(address, row, column, rows, columns, mask, T: tl.constexpr, COMPLEX: tl.constexpr):
    """Entries of a matrix; real and imaginary parts alternate in memory."""
    at = address + rows[:, None] * row + columns[None, :] * column
    if COMPLEX:
        return tl.load(at, mask=mask, other=0.0).to(T), tl.load(at + 1, mask=mask, other=0.0).to(T)
    else:
        return (tl.load(at, mask=mask, other=0.0).to(T),)


@triton.jit
def store(address, row, column, rows, columns, mask, a, COMPLEX: tl.constexpr):
    """The inverse of :func:`load`."""
    at = address + rows[:, None] * row + columns[None, :] * column
    tl.store(at, a[0].to(address.dtype.element_ty), mask=mask)
    if COMPLEX:
        tl.store(at + 1, a[1].to(address.dtype.element_ty), mask=mask)
