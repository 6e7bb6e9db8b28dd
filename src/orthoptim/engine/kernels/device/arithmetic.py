"""What all kernels share: numbers, addresses, the base optimizers, and when to rescue.

Formulas are those of :mod:`orthoptim.base` and :mod:`orthoptim.stiefel.policies`, with the same guards against squares
that overflow or are flushed to zero.

A row of the table describes one parameter, see :mod:`orthoptim.engine.kernels.table`: numbers of 64 bits.
"""

import triton
import triton.language as tl

NUMBERS = ["lr", "weight1", "weight2", "log_beta1", "log_beta2", "eps", "momentum", "undamped"]
"""Arguments that may change from step to step: no version of a kernel is compiled for special values of them."""

COUNT = tl.constexpr(0)
INNER = tl.constexpr(1)
STEP = tl.constexpr(2)
ENTRIES = tl.constexpr(3)
MATRICES = tl.constexpr(23)
X = tl.constexpr(0)
GRAD = tl.constexpr(1)
BUFFER = tl.constexpr(2)
MASTER = tl.constexpr(3)
NUM_UPDATES = tl.constexpr(0)
CLIPPED = tl.constexpr(1)
RESCUED = tl.constexpr(2)
SQUARE = tl.constexpr(3)
SCALE = tl.constexpr(35)
WIDTH = tl.constexpr(36)

FAR = tl.constexpr(0.36)
LEAST_SCALE = tl.constexpr(1e-2)


@triton.jit
def number(a, T: tl.constexpr):
    """A host number. Triton passes floats in 32 bits, so float64 kernels are given the bits of a double."""
    if T == tl.float64:
        return tl.full((), a, tl.int64).to(tl.float64, bitcast=True)
    else:
        return tl.full((), a, tl.float32)


@triton.jit
def sigma_of(row, SCALED: tl.constexpr, T: tl.constexpr):
    """σ: the parameter holds σ times the matrices."""
    if SCALED:
        return tl.load(row + SCALE).to(tl.float64, bitcast=True).to(T)
    else:
        return tl.full((), 1.0, T)


@triton.jit
def divide(a, b):
    """a/b, rounded to nearest; in float32 plain division is an approximation."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, tl.broadcast_to(b, a.shape))


@triton.jit
def rescaled(y, held, sigma):
    """σ times new entries; those that have not changed as they are held, see :mod:`orthoptim.engine.state`."""
    return tl.where(y == divide(held, sigma), held, y * sigma)


@triton.jit
def learning_rate(lr, LR_TENSOR: tl.constexpr, T: tl.constexpr):
    """η: a number, or a tensor on the device."""
    if LR_TENSOR:
        return tl.load(lr).to(T)
    else:
        return number(lr, T)


@triton.jit
def entries(row, of: tl.constexpr, outer, inner, D: tl.constexpr):
    """The address of the first entry of matrices, and the strides of their rows and columns."""
    at = row + ENTRIES + 5 * of
    return _strided(tl.load(at), at, outer, inner, D)


@triton.jit
def gradient(row, grads, member, outer, inner, D: tl.constexpr):
    """The same of the gradient, whose address may change from step to step and is not in the row."""
    return _strided(tl.load(grads + member), row + ENTRIES + 5 * GRAD, outer, inner, D)


@triton.jit
def _strided(address, at, outer, inner, D: tl.constexpr):
    first = address.to(tl.pointer_type(D))
    return first + outer * tl.load(at + 1) + inner * tl.load(at + 2), tl.load(at + 3), tl.load(at + 4)


@triton.jit
def values(row, of: tl.constexpr, outer, inner, D: tl.constexpr):
    """The addresses of one value per matrix."""
    at = row + MATRICES + 3 * of
    return tl.load(at).to(tl.pointer_type(D)) + outer * tl.load(at + 1) + inner * tl.load(at + 2)


@triton.jit
def count_step(row):
    """Count the step of a parameter; a part of it that is not the first has no counter."""
    address = tl.load(row + STEP)
    if address != 0:
        step = address.to(tl.pointer_type(tl.float32))
        tl.store(step, tl.load(step) + 1)


@triton.jit
def sqrt(a):
    """The square root, rounded to nearest; in float32 plain ``tl.sqrt`` is an approximation."""
    if a.dtype == tl.float64:
        return tl.sqrt(a)
    else:
        return tl.sqrt_rn(a)


@triton.jit
def bias_correction(log_beta, t, TERMS: tl.constexpr):
    """1 − βᵗ = −expm1(t·log β). By exp alone it would cancel: 1.7e-5 is lost at β = 0.999 in float32.

    The series is used up to ½, where its terms fall by more than 2k each; beyond, 1 − exp loses at most a bit.
    """
    z = t * log_beta
    small = tl.maximum(z, -0.5)
    series = 1.0 + small * (1.0 / TERMS)
    for k in tl.static_range(1, TERMS - 1):
        series = 1.0 + small * (1.0 / (TERMS - k)) * series
    return tl.where(z < -0.5, 1.0 - tl.exp(z), -small * series)


@triton.jit
def lerp(a, b, weight):
    """torch.lerp."""
    difference = b - a
    return tl.where(weight < 0.5, a + weight * difference, b - difference * (1.0 - weight))


@triton.jit
def advance(g, held, first, weight, momentum, undamped, VADAM: tl.constexpr, MOMENTUM: tl.constexpr,
            NESTEROV: tl.constexpr, DAMPENED: tl.constexpr):  # fmt: skip
    """The direction up to a factor, and the new buffer; entry by entry."""
    if VADAM:
        new = lerp(held, g, weight)
        return new, new
    elif MOMENTUM:
        new = held * momentum + g * undamped
        if DAMPENED:
            new = tl.where(first, g, new)
        if NESTEROV:
            return g + momentum * new, new
        else:
            return new, new
    else:
        return g, g


@triton.jit
def vadam_scale(square, statistic, t, weight, log_beta1, log_beta2, eps, MAX: tl.constexpr, TINY: tl.constexpr,
                TERMS: tl.constexpr):  # fmt: skip
    """The factor of VAdam's direction, and the new second moment."""
    new = lerp(square, statistic, weight)
    new = tl.where(new > MAX, MAX, new)
    corrected = sqrt(new) / sqrt(bias_correction(log_beta2, t, TERMS))
    least = sqrt(tl.full((), TINY, new.dtype))
    return 1.0 / (bias_correction(log_beta1, t, TERMS) * (tl.maximum(corrected, least) + eps)), new


@triton.jit
def clip(eta, square, most, FLOOR: tl.constexpr):
    """The length s of a leap with |s|·‖R‖_F ≤ most; squares below the floor may have been flushed to zero."""
    cap = most / sqrt(tl.maximum(square, FLOOR))
    return tl.minimum(tl.maximum(eta, -cap), cap)


@triton.jit
def rescue(top, size, leap, P: tl.constexpr, CLIP: tl.constexpr, REACH: tl.constexpr):
    """ρ, whether ρM can be landed (1 or 0), and which matrices are counted as rescued."""
    far = top > REACH - 1.0
    scale = tl.where(far, 1.0 / sqrt(tl.where(far, 0.5 * P * top + 0.5 * P, 1.0)), 1.0)
    if CLIP > 0:
        flag = far | (size > leap * leap + FAR)
    else:
        flag = far | (top < -0.5)
    return tl.maximum(scale, LEAST_SCALE), tl.where(scale >= LEAST_SCALE, 1.0, 0.0).to(scale.dtype), flag
