"""The step of a matrix with few and long rows by several programs, each with a stretch of its columns: two launches.

The form is ``gram`` of :mod:`orthoptim.stiefel.steps`. The first launch sums A = XXᴴ, B = XGᴴ and N = GGᴴ over each
stretch. The second adds up these sums, works out X⁺ = X + DX − FG on p×p matrices, and writes its stretch.

Partial sums lie in a scratch tensor: of each matrix and stretch the planes of A, B and N, then the square norm of the
gradient. ``num_updates`` and the second moment of each matrix are copied to the scratch tensor by the first launch:
in the second one a program may write them before another has read them.
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

SCALARS = tl.constexpr(4)
"""Numbers after the planes of a stretch: the statistic, num_updates, the second moment; one is not used."""


@triton.jit(do_not_specialize=["weight1"])
def gram_sums(table, grads, work, scratch, weight1, P: tl.constexpr, N: tl.constexpr, T: tl.constexpr,
              XT: tl.constexpr, GT: tl.constexpr, HALF: tl.constexpr, SCALED: tl.constexpr, MAXIMIZE: tl.constexpr,
              COMPLEX: tl.constexpr,
              ROWS: tl.constexpr, TILE: tl.constexpr, STRETCH: tl.constexpr):  # fmt: skip
    """The sums over one stretch of columns of one matrix."""
    matrix, stretch = tl.program_id(0), tl.program_id(1)
    member = tl.load(work + 2 * matrix).to(tl.int64)
    b = tl.load(work + 2 * matrix + 1)
    row = table + member * WIDTH
    dim = tl.load(row + INNER).to(tl.int32)
    outer, inner = (b // dim).to(tl.int64), (b % dim).to(tl.int64)
    at = places(row, grads, member, outer, inner, XT, GT, T, HALF, True, SCALED)
    rows, tile = tl.arange(0, ROWS), tl.arange(0, TILE)
    weight = number(weight1, T)
    zero = tl.zeros((ROWS, ROWS), T)
    a, x_g, g_g = (zero,), (zero,), (zero,)
    if COMPLEX:
        a, x_g, g_g = (zero, zero), (zero, zero), (zero, zero)
    statistic = tl.zeros((), T)
    for start in range(0, STRETCH, TILE):
        columns = stretch * STRETCH + start + tile
        mask = (rows[:, None] < P) & (columns[None, :] < N)
        x = load_x(at, rows, columns, mask, T, XT, HALF, SCALED, COMPLEX)
        g, u, _ = load_direction(at, rows, columns, mask, False, weight, weight, weight, T, MAXIMIZE, True, False,
                                 False, False, SCALED, COMPLEX)  # fmt: skip
        a = planes.combine(a, 1.0, planes.product_adjoint(x, x, COMPLEX), 1.0, COMPLEX)
        x_g = planes.combine(x_g, 1.0, planes.product_adjoint(x, u, COMPLEX), 1.0, COMPLEX)
        g_g = planes.combine(g_g, 1.0, planes.product_adjoint(u, u, COMPLEX), 1.0, COMPLEX)
        statistic += planes.square_norm(g, COMPLEX)
    size = ROWS * ROWS * (6 if COMPLEX else 3) + SCALARS
    room = scratch + (matrix.to(tl.int64) * tl.num_programs(1) + stretch) * size
    _store(room, a, 0, ROWS, COMPLEX)
    _store(room, x_g, 1, ROWS, COMPLEX)
    _store(room, g_g, 2, ROWS, COMPLEX)
    numbers = room + size - SCALARS
    tl.store(numbers, statistic)
    if stretch == 0:
        updates = tl.load(values(row, NUM_UPDATES, outer, inner, tl.int32))
        tl.store((numbers + 1).to(tl.pointer_type(tl.int32)), updates)
        tl.store(numbers + 2, tl.load(values(row, SQUARE, outer, inner, T)))


@triton.jit(do_not_specialize=NUMBERS)
def gram_step(table, grads, work, scratch, lr, weight1, weight2, log_beta1, log_beta2, eps, momentum, undamped,
              P: tl.constexpr, N: tl.constexpr, T: tl.constexpr, XT: tl.constexpr, GT: tl.constexpr,
              HALF: tl.constexpr, SCALED: tl.constexpr, LR_TENSOR: tl.constexpr, MAXIMIZE: tl.constexpr,
              CLIP: tl.constexpr, STEPS: tl.constexpr, REACH: tl.constexpr,
              MAX: tl.constexpr, TINY: tl.constexpr, FLOOR: tl.constexpr, TERMS: tl.constexpr,
              MOST: tl.constexpr, COMPLEX: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
              STRETCH: tl.constexpr):  # fmt: skip
    """Write one stretch of columns of one matrix; the program of the first stretch also writes what is per matrix."""
    matrix, stretch = tl.program_id(0), tl.program_id(1)
    member = tl.load(work + 2 * matrix).to(tl.int64)
    b = tl.load(work + 2 * matrix + 1)
    row = table + member * WIDTH
    dim = tl.load(row + INNER).to(tl.int32)
    outer, inner = (b // dim).to(tl.int64), (b % dim).to(tl.int64)
    rows, tile = tl.arange(0, ROWS), tl.arange(0, TILE)
    identity = ((rows[:, None] == rows[None, :]) & (rows[:, None] < P)).to(T)

    size = ROWS * ROWS * (6 if COMPLEX else 3) + SCALARS
    room = scratch + matrix.to(tl.int64) * tl.num_programs(1) * size
    numbers = room + size - SCALARS
    updates = tl.load((numbers + 1).to(tl.pointer_type(tl.int32)))
    t = (updates + 1).to(T)
    zero = tl.zeros((ROWS, ROWS), T)
    a, x_g, g_g = (zero,), (zero,), (zero,)
    if COMPLEX:
        a, x_g, g_g = (zero, zero), (zero, zero), (zero, zero)
    statistic = tl.zeros((), T)
    for k in range(0, tl.num_programs(1)):
        part = room + k * size
        a = planes.combine(a, 1.0, _load(part, 0, ROWS, COMPLEX), 1.0, COMPLEX)
        x_g = planes.combine(x_g, 1.0, _load(part, 1, ROWS, COMPLEX), 1.0, COMPLEX)
        g_g = planes.combine(g_g, 1.0, _load(part, 2, ROWS, COMPLEX), 1.0, COMPLEX)
        statistic += tl.load(part + size - SCALARS)

    scale, second = vadam_scale(tl.load(numbers + 2), statistic, t, number(weight2, T), number(log_beta1, T),
                                number(log_beta2, T), number(eps, T), MAX, TINY, TERMS)  # fmt: skip
    trace_n = planes.trace(g_g, identity)
    norm = planes.trace(a, identity)
    x_g = planes.times(x_g, scale, COMPLEX)
    n = planes.times(planes.times(g_g, scale, COMPLEX), scale, COMPLEX)
    # RRᴴ = ¼[A(NA − BᴴBᴴ) − B(BA − ABᴴ)]
    ba = planes.product(x_g, a, COMPLEX)
    bh = planes.adjoint(x_g, COMPLEX)
    inside = planes.combine(planes.product(n, a, COMPLEX), 1.0, planes.product(bh, bh, COMPLEX), -1.0, COMPLEX)
    skew = planes.combine(ba, 1.0, planes.adjoint(ba, COMPLEX), -1.0, COMPLEX)
    e = planes.combine(planes.product(a, inside, COMPLEX), 0.25, planes.product(x_g, skew, COMPLEX), -0.25, COMPLEX)
    leap = planes.trace(e, identity)
    if CLIP > 0:  # s‖G‖ ≤ 2τ
        leap = tl.maximum(leap, 0.25 * tl.maximum(trace_n, FLOOR) * scale * scale)
    eta = learning_rate(lr, LR_TENSOR, T)
    s = clip(eta, leap, MOST, FLOOR)
    c = planes.add_multiple(planes.combine(a, 1.0, e, s * s, COMPLEX), -1.0, identity, COMPLEX)
    top = tl.max(tl.where(identity > 0, c[0], -float("inf")))
    rho, lands, rescued = rescue(top, planes.square_norm(c, COMPLEX), s * s * leap, P, CLIP, REACH)
    q = planes.landing(c, rho, lands, identity, STEPS, COMPLEX)
    # X⁺ = X + DX − FG
    half = 0.5 * s
    qb = planes.product(q, x_g, COMPLEX)
    d = planes.combine(q, 1.0, planes.combine(x_g, 1.0, qb, 1.0, COMPLEX), half, COMPLEX)
    f = planes.times(planes.combine(a, 1.0, planes.product(q, a, COMPLEX), 1.0, COMPLEX), half * scale, COMPLEX)
    probe = trace_n + planes.square_norm(d, COMPLEX) * norm + planes.square_norm(f, COMPLEX) * trace_n
    finite = probe - probe == 0.0
    written = tl.full((1, 1), probe, T) - probe == 0.0  # the same: triton's interpreter broadcasts no scalar bool

    at = places(row, grads, member, outer, inner, XT, GT, T, HALF, True, SCALED)
    weight = number(weight1, T)
    for start in range(0, STRETCH, TILE):
        columns = stretch * STRETCH + start + tile
        mask = (rows[:, None] < P) & (columns[None, :] < N)
        x = load_x(at, rows, columns, mask, T, XT, HALF, SCALED, COMPLEX)
        _, u, new = load_direction(at, rows, columns, mask, False, weight, weight, weight, T, MAXIMIZE, True, False,
                                   False, False, SCALED, COMPLEX)  # fmt: skip
        dx = planes.product(d, x, COMPLEX)
        fg = planes.product(f, u, COMPLEX)
        y = planes.combine(planes.combine(x, 1.0, dx, 1.0, COMPLEX), 1.0, fg, -1.0, COMPLEX)
        store_columns(at, rows, columns, mask, written, x, y, new, T, XT, HALF, True, SCALED, COMPLEX)
    if stretch == 0:
        if finite:
            tl.store(values(row, NUM_UPDATES, outer, inner, tl.int32), updates + 1)
            tl.store(values(row, SQUARE, outer, inner, T), second)
            if CLIP > 0:
                p_clipped = values(row, CLIPPED, outer, inner, tl.int32)
                tl.store(p_clipped, tl.load(p_clipped) + (s != eta).to(tl.int32))
            p_rescued = values(row, RESCUED, outer, inner, tl.int32)
            tl.store(p_rescued, tl.load(p_rescued) + rescued.to(tl.int32))
        if b == 0:
            count_step(row)


@triton.jit
def _store(room, a, of: tl.constexpr, ROWS: tl.constexpr, COMPLEX: tl.constexpr):
    at = _place(room, of, ROWS, COMPLEX)
    tl.store(at, a[0])
    if COMPLEX:
        tl.store(at + ROWS * ROWS, a[1])


@triton.jit
def _load(room, of: tl.constexpr, ROWS: tl.constexpr, COMPLEX: tl.constexpr):
    at = _place(room, of, ROWS, COMPLEX)
    if COMPLEX:
        return tl.load(at), tl.load(at + ROWS * ROWS)
    else:
        return (tl.load(at),)


@triton.jit
def _place(room, of: tl.constexpr, ROWS: tl.constexpr, COMPLEX: tl.constexpr):
    rows = tl.arange(0, ROWS)
    return room + of * ROWS * ROWS * (2 if COMPLEX else 1) + rows[:, None] * ROWS + rows[None, :]
