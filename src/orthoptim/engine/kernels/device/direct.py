"""The step of a matrix with few rows by one program, in four passes over its columns.

The form is ``direct-p`` of :mod:`orthoptim.stiefel.steps`: A = XXᴴ and B = XGᴴ; then ‖R‖ with R = ½(AG − BX); then
MMᴴ with M = X − sR, measured; then X⁺ = M + QM is written. What a matrix of 10×256 takes stays in the cache of its
multiprocessor from pass to pass, so that it is read from memory once.
"""

import triton
import triton.language as tl

from orthoptim.engine.kernels.device import planes
from orthoptim.engine.kernels.device.arithmetic import (
    CLIPPED,
    INNER,
    NUM_UPDATES,
    NUMBERS,
    RESCUED,
    SQUARE,
    WIDTH,
    clip,
    count_step,
    learning_rate,
    number,
    rescue,
    vadam_scale,
    values,
)
from orthoptim.engine.kernels.device.matrix import load_direction, load_x, places, store_columns


@triton.jit(do_not_specialize=NUMBERS)
def direct_step(table, grads, work, lr, weight1, weight2, log_beta1, log_beta2, eps, momentum, undamped,
                P: tl.constexpr, N: tl.constexpr, T: tl.constexpr, XT: tl.constexpr, GT: tl.constexpr,
                HALF: tl.constexpr, SCALED: tl.constexpr, LR_TENSOR: tl.constexpr, MAXIMIZE: tl.constexpr,
                VADAM: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, DAMPENED: tl.constexpr,
                CLIP: tl.constexpr, STEPS: tl.constexpr, REACH: tl.constexpr,
                MAX: tl.constexpr, TINY: tl.constexpr, FLOOR: tl.constexpr, TERMS: tl.constexpr,
                MOST: tl.constexpr, ROUNDOFF: tl.constexpr, COMPLEX: tl.constexpr, ROWS: tl.constexpr,
                TILE: tl.constexpr):  # fmt: skip
    """Step one matrix; it is written, with its state, after all has been computed."""
    member = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    b = tl.load(work + 2 * tl.program_id(0) + 1)
    row = table + member * WIDTH
    dim = tl.load(row + INNER).to(tl.int32)
    outer, inner = (b // dim).to(tl.int64), (b % dim).to(tl.int64)
    at = places(row, grads, member, outer, inner, XT, GT, T, HALF, VADAM or MOMENTUM, SCALED)
    rows, tile = tl.arange(0, ROWS), tl.arange(0, TILE)
    identity = ((rows[:, None] == rows[None, :]) & (rows[:, None] < P)).to(T)
    p_updates = values(row, NUM_UPDATES, outer, inner, tl.int32)
    updates = tl.load(p_updates)
    t = (updates + 1).to(T)
    weight, mu, share = number(weight1, T), number(momentum, T), number(undamped, T)

    # the products with X, and sums over the entries of the gradient and of the direction
    zero = tl.zeros((ROWS, ROWS), T)
    a, x_g = (zero,), (zero,)
    if COMPLEX:
        a, x_g = (zero, zero), (zero, zero)
    statistic, square, total = tl.zeros((), T), tl.zeros((), T), tl.zeros((), T)
    largest = tl.full((), TINY, T)
    for start in range(0, N, TILE):
        columns = start + tile
        mask = (rows[:, None] < P) & (columns[None, :] < N)
        x = load_x(at, rows, columns, mask, T, XT, HALF, SCALED, COMPLEX)
        g, u, _ = load_direction(at, rows, columns, mask, t == 1, weight, mu, share, T, MAXIMIZE, VADAM, MOMENTUM,
                                 NESTEROV, DAMPENED, SCALED, COMPLEX)  # fmt: skip
        a = planes.combine(a, 1.0, planes.product_adjoint(x, x, COMPLEX), 1.0, COMPLEX)
        x_g = planes.combine(x_g, 1.0, planes.product_adjoint(x, u, COMPLEX), 1.0, COMPLEX)
        if VADAM:
            statistic += planes.square_norm(g, COMPLEX)
        if CLIP > 0:
            square += planes.square_norm(u, COMPLEX)
        total += tl.sum(u[0])
        if CLIP > 0 and not VADAM:
            largest = tl.maximum(largest, tl.max(tl.abs(u[0])))
        if COMPLEX:
            total += tl.sum(u[1])
            if CLIP > 0 and not VADAM:
                largest = tl.maximum(largest, tl.max(tl.abs(u[1])))

    eta, scale = learning_rate(lr, LR_TENSOR, T), tl.full((), 1.0, T)
    if VADAM:
        p_square = values(row, SQUARE, outer, inner, T)
        scale, second = vadam_scale(tl.load(p_square), statistic, t, number(weight2, T), number(log_beta1, T),
                                    number(log_beta2, T), number(eps, T), MAX, TINY, TERMS)  # fmt: skip
    total = total * scale
    if CLIP > 0 and not VADAM:
        eta, scale = eta * largest, 1.0 / largest

    # R = AG − BX with the factors in A and B, its norm, and the length of the leap
    a = planes.times(a, 0.5 * scale, COMPLEX)
    x_g = planes.times(x_g, 0.5 * scale, COMPLEX)
    size = tl.zeros((), T)
    for start in range(0, N, TILE):
        columns = start + tile
        mask = (rows[:, None] < P) & (columns[None, :] < N)
        x = load_x(at, rows, columns, mask, T, XT, HALF, SCALED, COMPLEX)
        _, u, _ = load_direction(at, rows, columns, mask, t == 1, weight, mu, share, T, MAXIMIZE, VADAM, MOMENTUM,
                                 NESTEROV, DAMPENED, SCALED, COMPLEX)  # fmt: skip
        size += planes.square_norm(_relative_gradient(a, u, x_g, x, COMPLEX), COMPLEX)
    if CLIP > 0:  # the rounding error of R is not tangent
        error = tl.maximum(square, FLOOR) * scale * scale * ROUNDOFF
        if not VADAM:
            error = tl.minimum(error, 1.0)
        size += error
    s = clip(eta, size, MOST, FLOOR)

    # C = MMᴴ − I, and Q(C)
    c = (-identity,)
    if COMPLEX:
        c = (-identity, zero)
    for start in range(0, N, TILE):
        columns = start + tile
        mask = (rows[:, None] < P) & (columns[None, :] < N)
        x = load_x(at, rows, columns, mask, T, XT, HALF, SCALED, COMPLEX)
        _, u, _ = load_direction(at, rows, columns, mask, t == 1, weight, mu, share, T, MAXIMIZE, VADAM, MOMENTUM,
                                 NESTEROV, DAMPENED, SCALED, COMPLEX)  # fmt: skip
        m = planes.combine(x, 1.0, _relative_gradient(a, u, x_g, x, COMPLEX), -s, COMPLEX)
        c = planes.combine(c, 1.0, planes.product_adjoint(m, m, COMPLEX), 1.0, COMPLEX)
    top = tl.max(tl.where(identity > 0, c[0], -float("inf")))
    rho, lands, rescued = rescue(top, planes.square_norm(c, COMPLEX), s * s * size, P, CLIP, REACH)
    norm = planes.trace(c, identity) + P
    q = planes.landing(c, rho, lands, identity, STEPS, COMPLEX)
    # finite only if the direction and the new matrix are
    total += planes.square_norm(q, COMPLEX) * norm
    finite = total - total == 0.0
    written = tl.full((1, 1), total, T) - total == 0.0  # the same: triton's interpreter broadcasts no scalar bool

    for start in range(0, N, TILE):
        columns = start + tile
        mask = (rows[:, None] < P) & (columns[None, :] < N)
        x = load_x(at, rows, columns, mask, T, XT, HALF, SCALED, COMPLEX)
        _, u, new = load_direction(at, rows, columns, mask, t == 1, weight, mu, share, T, MAXIMIZE, VADAM, MOMENTUM,
                                   NESTEROV, DAMPENED, SCALED, COMPLEX)  # fmt: skip
        m = planes.combine(x, 1.0, _relative_gradient(a, u, x_g, x, COMPLEX), -s, COMPLEX)
        y = planes.combine(m, 1.0, planes.product(q, m, COMPLEX), 1.0, COMPLEX)
        store_columns(at, rows, columns, mask, written, x, y, new, T, XT, HALF, VADAM or MOMENTUM, SCALED, COMPLEX)
    if finite:
        tl.store(p_updates, updates + 1)
        if VADAM:
            tl.store(p_square, second)
        if CLIP > 0:
            p_clipped = values(row, CLIPPED, outer, inner, tl.int32)
            tl.store(p_clipped, tl.load(p_clipped) + (s != eta).to(tl.int32))
        p_rescued = values(row, RESCUED, outer, inner, tl.int32)
        tl.store(p_rescued, tl.load(p_rescued) + rescued.to(tl.int32))
    if b == 0:
        count_step(row)


@triton.jit
def _relative_gradient(a, g, b, x, COMPLEX: tl.constexpr):
    """AG − BX."""
    return planes.combine(planes.product(a, g, COMPLEX), 1.0, planes.product(b, x, COMPLEX), -1.0, COMPLEX)
