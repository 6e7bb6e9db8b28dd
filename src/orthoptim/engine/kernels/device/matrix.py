"""One matrix of a parameter: where its tensors lie, and its columns, tile by tile."""

import triton
import triton.language as tl

from orthoptim.engine.kernels.device import planes
from orthoptim.engine.kernels.device.arithmetic import (
    BUFFER,
    MASTER,
    X,
    advance,
    divide,
    entries,
    gradient,
    rescaled,
    sigma_of,
)


@triton.jit
def places(row, grads, member, outer, inner, XT: tl.constexpr, GT: tl.constexpr, T: tl.constexpr,
           HALF: tl.constexpr, BUFFERED: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """Address and strides of the parameter, its gradient, its buffer and its master, each where there is one; and σ."""
    x = entries(row, X, outer, inner, XT)
    g = gradient(row, grads, member, outer, inner, GT)
    if BUFFERED:
        m = entries(row, BUFFER, outer, inner, T)
    else:
        m = g
    if HALF:
        w = entries(row, MASTER, outer, inner, T)
    else:
        w = x
    return x, g, m, w, sigma_of(row, SCALED, T)


@triton.jit
def load_x(at, rows, columns, mask, T: tl.constexpr, XT: tl.constexpr, HALF: tl.constexpr, SCALED: tl.constexpr,
           COMPLEX: tl.constexpr):  # fmt: skip
    """Columns of X."""
    x = _load_held(at, rows, columns, mask, T, XT, HALF, COMPLEX)
    if SCALED:
        if COMPLEX:
            x = (divide(x[0], at[4]), divide(x[1], at[4]))
        else:
            x = (divide(x[0], at[4]),)
    return x


@triton.jit
def _load_held(at, rows, columns, mask, T: tl.constexpr, XT: tl.constexpr, HALF: tl.constexpr, COMPLEX: tl.constexpr):
    """Columns of the parameter; in half precision those of its master, but for entries written to since."""
    x = planes.load(at[0][0], at[0][1], at[0][2], rows, columns, mask, T, COMPLEX)
    if HALF:
        master = planes.load(at[3][0], at[3][1], at[3][2], rows, columns, mask, T, COMPLEX)
        x = (tl.where(master[0].to(XT).to(T) == x[0], master[0], x[0]),)
    return x


@triton.jit
def load_direction(at, rows, columns, mask, first, weight, momentum, undamped, T: tl.constexpr,
                   MAXIMIZE: tl.constexpr, VADAM: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr,
                   DAMPENED: tl.constexpr, SCALED: tl.constexpr, COMPLEX: tl.constexpr):  # fmt: skip
    """Columns of the gradient, of the direction up to its factor, and of the new buffer."""
    g = planes.load(at[1][0], at[1][1], at[1][2], rows, columns, mask, T, COMPLEX)
    if MAXIMIZE:
        g = planes.times(g, -1.0, COMPLEX)
    if SCALED:
        g = planes.times(g, at[4], COMPLEX)
    if VADAM or MOMENTUM:
        held = planes.load(at[2][0], at[2][1], at[2][2], rows, columns, mask, T, COMPLEX)
    else:
        held = g
    u, new = advance(g[0], held[0], first, weight, momentum, undamped, VADAM, MOMENTUM, NESTEROV, DAMPENED)
    if COMPLEX:
        ui, newi = advance(g[1], held[1], first, weight, momentum, undamped, VADAM, MOMENTUM, NESTEROV, DAMPENED)
        return g, (u, ui), (new, newi)
    else:
        return g, (u,), (new,)


@triton.jit
def store_columns(at, rows, columns, mask, finite, x, y, new, T: tl.constexpr, XT: tl.constexpr, HALF: tl.constexpr,
                  BUFFERED: tl.constexpr, SCALED: tl.constexpr, COMPLEX: tl.constexpr):  # fmt: skip
    """Write new columns of X and of the buffer where the matrix is finite; else X stays, in its master too."""
    if SCALED:
        x = _load_held(at, rows, columns, mask, T, XT, HALF, COMPLEX)
        if COMPLEX:
            y = (rescaled(y[0], x[0], at[4]), rescaled(y[1], x[1], at[4]))
        else:
            y = (rescaled(y[0], x[0], at[4]),)
    if HALF:
        kept = (tl.where(finite, y[0], x[0]),)
        planes.store(at[3][0], at[3][1], at[3][2], rows, columns, mask, kept, COMPLEX)
    planes.store(at[0][0], at[0][1], at[0][2], rows, columns, mask & finite, y, COMPLEX)
    if BUFFERED:
        planes.store(at[2][0], at[2][1], at[2][2], rows, columns, mask & finite, new, COMPLEX)
