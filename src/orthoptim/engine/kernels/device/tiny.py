"""The step of tiny real matrices, p ≤ n ≤ 4: one lane per matrix, all of it in registers.

The form is ``tiny`` of :mod:`orthoptim.stiefel.steps`. A matrix is a tuple of p·n vectors over the batch; loops over
its entries are unrolled.
"""

import triton
import triton.language as tl

from orthoptim.engine.kernels.device.arithmetic import (
    BUFFER,
    CLIPPED,
    COUNT,
    INNER,
    MASTER,
    NUM_UPDATES,
    NUMBERS,
    RESCUED,
    SQUARE,
    WIDTH,
    X,
    advance,
    clip,
    count_step,
    divide,
    entries,
    gradient,
    learning_rate,
    number,
    rescaled,
    rescue,
    sigma_of,
    vadam_scale,
    values,
)


@triton.jit(do_not_specialize=NUMBERS)
def tiny_step(table, grads, work, lr, weight1, weight2, log_beta1, log_beta2, eps, momentum, undamped,
              P: tl.constexpr, N: tl.constexpr, T: tl.constexpr, XT: tl.constexpr, GT: tl.constexpr,
              HALF: tl.constexpr, SCALED: tl.constexpr, LARGEST: tl.constexpr, LR_TENSOR: tl.constexpr,
              MAXIMIZE: tl.constexpr,
              VADAM: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, DAMPENED: tl.constexpr,
              CLIP: tl.constexpr, STEPS: tl.constexpr, REACH: tl.constexpr,
              MAX: tl.constexpr, TINY: tl.constexpr, FLOOR: tl.constexpr, TERMS: tl.constexpr,
              BLOCK: tl.constexpr):  # fmt: skip
    """Step BLOCK matrices of one parameter; they are written, with their state, after all has been computed."""
    member = tl.load(work + 2 * tl.program_id(0)).to(tl.int64)
    start = tl.load(work + 2 * tl.program_id(0) + 1)
    row = table + member * WIDTH
    b = start + tl.arange(0, BLOCK)
    mask = b < tl.load(row + COUNT).to(tl.int32)
    dim = tl.load(row + INNER).to(tl.int32)
    outer, inner = (b // dim).to(tl.int64), (b % dim).to(tl.int64)

    px, x_row, x_column = entries(row, X, outer, inner, XT)
    x = _load(px, x_row, x_column, mask, P, N, T)
    if HALF:
        pw, w_row, w_column = entries(row, MASTER, outer, inner, T)
        x = _newest(x, _load(pw, w_row, w_column, mask, P, N, T), P, N, T, XT)
    held_x, sigma = x, sigma_of(row, SCALED, T)
    if SCALED:
        x = _divided(x, sigma, P * N)
    pg, g_row, g_column = gradient(row, grads, member, outer, inner, GT)
    g = _load(pg, g_row, g_column, mask, P, N, T)
    if MAXIMIZE:
        g = _times(g, -1.0, P * N)
    if SCALED:
        g = _times(g, sigma, P * N)
    p_updates = values(row, NUM_UPDATES, outer, inner, tl.int32)
    updates = tl.load(p_updates, mask=mask, other=0)
    t = (updates + 1).to(T)

    # direction
    if VADAM or MOMENTUM:
        pm, m_row, m_column = entries(row, BUFFER, outer, inner, T)
        held = _load(pm, m_row, m_column, mask, P, N, T)
    else:
        held = g
    weight, mu, share = number(weight1, T), number(momentum, T), number(undamped, T)
    u, buffer = (), ()
    for k in tl.static_range(P * N):
        step, new = advance(g[k], held[k], t == 1, weight, mu, share, VADAM, MOMENTUM, NESTEROV, DAMPENED)
        u, buffer = u + (step,), buffer + (new,)
    eta = learning_rate(lr, LR_TENSOR, T) + 0.0 * t
    scale = eta * 0.0 + 1.0
    if VADAM:
        p_square = values(row, SQUARE, outer, inner, T)
        square = tl.load(p_square, mask=mask, other=0.0)
        scale, square = vadam_scale(square, _dot(g, 0, g, 0, P * N), t, number(weight2, T), number(log_beta1, T),
                                    number(log_beta2, T), number(eps, T), MAX, TINY, TERMS)  # fmt: skip
    total = scale * _sum(u, P * N)
    if CLIP > 0 and not VADAM:  # without, the squares of R overflow long before its entries do
        size = tl.abs(u[0])
        for k in tl.static_range(1, P * N):
            size = tl.maximum(size, tl.abs(u[k]))
        size = tl.maximum(size, TINY)
        eta, scale = eta * size, 1.0 / size

    # leap
    r = _relative_gradient(x, u, 0.5 * scale, P, N)
    length, leap = eta, eta * 0.0
    if CLIP > 0:
        square_norm = _dot(r, 0, r, 0, P * N)
        length = clip(eta, square_norm, CLIP, FLOOR)
        leap = length * length * square_norm
    m = ()
    for k in tl.static_range(P * N):
        m = m + (x[k] - length * r[k],)

    # land
    c = ()
    for i in tl.static_range(P):
        for j in tl.static_range(P):
            if j < i:
                c = c + (c[j * P + i],)
            elif j == i:
                c = c + (_dot(m, i * N, m, i * N, N) - 1.0,)
            else:
                c = c + (_dot(m, i * N, m, j * N, N),)
    q, rescued = _land(c, leap, P, CLIP, STEPS, REACH)
    y = ()
    for i in tl.static_range(P):
        for j in tl.static_range(N):
            entry = m[i * N + j]
            for k in tl.static_range(P):
                entry += q[i * P + k] * m[k * N + j]
            y = y + (entry,)

    # a sum is finite only if its terms are
    total += _sum(y, P * N)
    finite = total - total == 0.0
    if LARGEST > 0:
        for k in tl.static_range(P * N):
            finite = finite & (tl.abs(y[k]) <= LARGEST / sigma)
    finite = finite & mask
    if SCALED:
        y = _rescaled(y, held_x, sigma, P * N)
    if HALF:  # the master takes what somebody has written to the parameter even where the step is skipped
        kept = ()
        for k in tl.static_range(P * N):
            kept = kept + (tl.where(finite, y[k], held_x[k]),)
        _store(pw, w_row, w_column, kept, mask, P, N)
    _store(px, x_row, x_column, y, finite, P, N)
    if VADAM or MOMENTUM:
        _store(pm, m_row, m_column, buffer, finite, P, N)
    if VADAM:
        tl.store(p_square, square, mask=finite)
    tl.store(p_updates, updates + 1, mask=finite)
    if CLIP > 0:
        p_clipped = values(row, CLIPPED, outer, inner, tl.int32)
        was = finite & (length != eta)
        tl.store(p_clipped, tl.load(p_clipped, mask=was, other=0) + 1, mask=was)
    p_rescued = values(row, RESCUED, outer, inner, tl.int32)
    was = finite & rescued
    tl.store(p_rescued, tl.load(p_rescued, mask=was, other=0) + 1, mask=was)
    if start == 0:
        count_step(row)


@triton.jit
def _load(address, row, column, mask, P: tl.constexpr, N: tl.constexpr, T: tl.constexpr):
    a = ()
    for i in tl.static_range(P):
        for j in tl.static_range(N):
            a = a + (tl.load(address + i * row + j * column, mask=mask, other=0.0).to(T),)
    return a


@triton.jit
def _store(address, row, column, a, mask, P: tl.constexpr, N: tl.constexpr):
    for i in tl.static_range(P):
        for j in tl.static_range(N):
            tl.store(address + i * row + j * column, a[i * N + j].to(address.dtype.element_ty), mask=mask)


@triton.jit
def _newest(x, master, P: tl.constexpr, N: tl.constexpr, T: tl.constexpr, XT: tl.constexpr):
    """The master copy; the parameter itself in the entries that somebody has written to since."""
    a = ()
    for k in tl.static_range(P * N):
        a = a + (tl.where(master[k].to(XT).to(T) == x[k], master[k], x[k]),)
    return a


@triton.jit
def _divided(a, sigma, COUNT: tl.constexpr):
    b = ()
    for k in tl.static_range(COUNT):
        b = b + (divide(a[k], sigma),)
    return b


@triton.jit
def _rescaled(y, held, sigma, COUNT: tl.constexpr):
    b = ()
    for k in tl.static_range(COUNT):
        b = b + (rescaled(y[k], held[k], sigma),)
    return b


@triton.jit
def _times(a, factor, COUNT: tl.constexpr):
    b = ()
    for k in tl.static_range(COUNT):
        b = b + (a[k] * factor,)
    return b


@triton.jit
def _sum(a, COUNT: tl.constexpr):
    total = a[0]
    for k in tl.static_range(1, COUNT):
        total += a[k]
    return total


@triton.jit
def _dot(a, i: tl.constexpr, b, j: tl.constexpr, COUNT: tl.constexpr):
    """The sum of the products of COUNT entries, of a from i on and of b from j on."""
    total = a[i] * b[j]
    for k in tl.static_range(1, COUNT):
        total += a[i + k] * b[j + k]
    return total


@triton.jit
def _relative_gradient(x, g, half, P: tl.constexpr, N: tl.constexpr):
    """X·Skew(XᵀG), through the entries of the skew matrix above its diagonal: it is skew to the last bit."""
    s = ()
    for i in tl.static_range(N):
        for j in tl.static_range(N):
            if j > i:
                entry = x[i] * g[j] - g[i] * x[j]
                for k in tl.static_range(1, P):
                    entry += x[k * N + i] * g[k * N + j] - g[k * N + i] * x[k * N + j]
                s = s + (entry * half,)
            elif j == i:
                s = s + (half * 0.0,)
            else:
                s = s + (-s[j * N + i],)
    r = ()
    for i in tl.static_range(P):
        for j in tl.static_range(N):
            entry = half * 0.0
            for k in tl.static_range(N):
                if k != j:
                    entry += x[i * N + k] * s[k * N + j]
            r = r + (entry,)
    return r


@triton.jit
def _land(c, leap, P: tl.constexpr, CLIP: tl.constexpr, STEPS: tl.constexpr, REACH: tl.constexpr):
    """Q with X⁺ = M + QM, and which matrices were rescued."""
    top = c[0]
    for i in tl.static_range(1, P):
        top = tl.maximum(top, c[i * P + i])
    rho, lands, rescued = rescue(top, _dot(c, 0, c, 0, P * P), leap, P, CLIP, REACH)
    square = rho * rho
    d = _affine(c, lands * square, lands * (square - 1.0), P)
    q = _times(d, -0.5, P * P)
    for _ in tl.static_range(STEPS - 1):
        dd = _product(d, d, P)
        ddd = _product(dd, d, P)
        d = ()
        for k in tl.static_range(P * P):
            d = d + (-0.25 * (3.0 * dd[k] - ddd[k]),)
        qd = _product(q, d, P)
        new = ()
        for k in tl.static_range(P * P):
            new = new + (q[k] - 0.5 * (d[k] + qd[k]),)
        q = new
    return _affine(q, rho, rho - 1.0, P), rescued


@triton.jit
def _affine(a, factor, shift, P: tl.constexpr):
    """Factor·A + shift·I."""
    b = ()
    for i in tl.static_range(P):
        for j in tl.static_range(P):
            if i == j:
                b = b + (factor * a[i * P + j] + shift,)
            else:
                b = b + (factor * a[i * P + j],)
    return b


@triton.jit
def _product(a, b, P: tl.constexpr):
    """The product of two symmetric matrices that commute."""
    c = ()
    for i in tl.static_range(P):
        for j in tl.static_range(P):
            if j < i:
                c = c + (c[j * P + i],)
            else:
                c = c + (_dot(a, i * P, b, j * P, P),)
    return c
