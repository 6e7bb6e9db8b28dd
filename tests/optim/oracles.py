"""The methods beside POGO as slow, obvious loops over single matrices in double precision."""

import math

import torch


def sym(a):
    return (a + a.mH) / 2


def skew(a):
    return (a - a.mH) / 2


def frobenius(a):
    return float((a.abs() ** 2).sum()) ** 0.5


def eye_like(a):
    return torch.eye(a.shape[0], dtype=a.dtype)


def qr_positive(y):
    """Q of Y = QR with a positive diagonal of R, by Gram–Schmidt twice."""
    columns = []
    for j in range(y.shape[1]):
        v = y[:, j].clone()
        for _ in range(2):
            for q in columns:
                v = v - q * (q.conj() @ v)
        columns.append(v / frobenius(v))
    return torch.stack(columns, 1)


def polar(y):
    values, vectors = torch.linalg.eigh(y @ y.mH)
    return vectors @ torch.diag(values**-0.5).to(y.dtype) @ vectors.mH @ y


def relative_gradient(x, g):
    return x @ skew(x.mH @ g)


def rgd(x, g, lr, *, metric="euclidean", retraction="qr", **_):
    d = g - sym(g @ x.mH) @ x if metric == "euclidean" else g - x @ g.mH @ x
    y = x - lr * d
    return polar(y) if retraction == "polar" else qr_positive(y.mH).mH


def rsdm(x, g, lr, *, frame, **_):
    k = skew((frame @ g.mH) @ (frame @ x.mH).mH)
    y = qr_positive(eye_like(k) - lr * k)
    return x + x @ frame.mH @ (y.mH - eye_like(k)) @ frame


def landing(x, g, lr, *, lam=1.0, eps=0.5, **_):
    return _landing(x, relative_gradient(x, g), lr, lam, eps)


def _landing(x, r, lr, lam, eps):
    c = x @ x.mH - eye_like(x @ x.mH)
    field = r + lam * c @ x
    d, size = frobenius(c), frobenius(field)
    a = lam * d * (1 - d)
    eta = min(lr, (a + (a**2 + size**2 * max(eps - d, 0)) ** 0.5) / size**2, 1 / (2 * lam))
    return x - eta * field


def landing_of_average(x, average, lr, *, lam=1.0, eps=0.5, **_):
    """Landing along an average of relative gradients: its tangent part takes the place of the relative gradient."""
    s = 2 * skew(x.mH @ average) - x.mH @ skew(average @ x.mH) @ x
    return _landing(x, x @ s, lr, lam, eps)


def landingpc(x, g, lr, *, lam=1.0, tau=0.5, coupled=True, **_):
    c = x @ x.mH - eye_like(x @ x.mH)
    x = x - lr * relative_gradient(x, g) - lam * (lr if coupled else 1) * c @ x
    far = frobenius(x @ x.mH - eye_like(x @ x.mH)) > tau
    return polar(x) if far else x


def slpg(x, g, lr, **_):
    y = x - lr * (g - sym(g @ x.mH) @ x)
    return 1.5 * y - 0.5 * (y @ y.mH) @ y


class VAdam:
    """Per matrix: m and a scalar v."""

    def __init__(self, betas=(0.9, 0.999), eps=1e-8):
        self.betas, self.eps, self.m, self.v, self.t = betas, eps, 0, 0.0, 0

    def __call__(self, x, g):
        (b1, b2), self.t = self.betas, self.t + 1
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * frobenius(g) ** 2
        return (self.m / (1 - b1**self.t)) / ((self.v / (1 - b2**self.t)) ** 0.5 + self.eps)


class Momentum:
    def __init__(self, momentum):
        self.momentum, self.buffer = momentum, None

    def __call__(self, x, g):
        self.buffer = g if self.buffer is None else self.momentum * self.buffer + g
        return self.buffer


class RelativeMomentum(Momentum):
    def __call__(self, x, g):
        return super().__call__(x, relative_gradient(x, g))


class BB:
    """η from S and Y, alternating; a tenth of a radian per row to begin with."""

    def __init__(self):
        self.last, self.t, self.eta = None, 0, None

    def __call__(self, x, g):
        self.t += 1
        r = relative_gradient(x, g)
        if self.last is None:
            self.eta = 0.1 * x.shape[0] ** 0.5 / frobenius(r)
        else:
            s, y = x - self.last[0], r - self.last[1]
            sy = float((s.conj() * y).real.sum())
            self.eta = abs(frobenius(s) ** 2 / sy if self.t % 2 == 0 else sy / frobenius(y) ** 2)
        self.last = x.clone(), r
        return self.eta * g


class ShortBB:
    """SLPG with the short quotient of its own direction, landing twice."""

    def __init__(self):
        self.last, self.eta = None, None

    def __call__(self, x, g):
        d = g - sym(g @ x.mH) @ x
        if self.last is None:
            self.eta = 0.1 * x.shape[0] ** 0.5 / frobenius(d)
        else:
            s, y = x - self.last[0], d - self.last[1]
            self.eta = abs(float((s.conj() * y).real.sum())) / frobenius(y) ** 2
        self.last = x.clone(), d
        y = x - self.eta * d
        for _ in range(2):
            y = 1.5 * y - 0.5 * (y @ y.mH) @ y
        return y


def exact_msign(t):
    u, _, vh = torch.linalg.svd(t.to(torch.complex128 if t.is_complex() else torch.float64), full_matrices=False)
    return u @ vh


def best_tangent_direction(x, g, steps=4000):
    """max ⟨G, D⟩ over tangent D with ‖D‖₂ ≤ 1, by its dual min ‖G − ΛX‖_* over symmetric Λ (subgradient descent)."""
    dual = sym(g @ x.mH)
    least, length = math.inf, float(torch.linalg.matrix_norm(g, 2))
    for t in range(steps):
        u, values, vh = torch.linalg.svd(g - dual @ x, full_matrices=False)
        least = min(least, float(values.sum()))
        slope = sym(u @ vh @ x.mH)
        dual = dual + length * 0.3 / (t + 1) ** 0.7 * slope
    return least


def taken(x, g):
    """⟨G, R⟩/‖R‖₂ of one projection after the sign: what a feasible multiple of R gives."""
    d = exact_msign(g - sym(g @ x.mH) @ x)
    r = d - sym(d @ x.mH) @ x
    return float((g.conj() * r).real.sum() / torch.linalg.matrix_norm(r, 2).clamp_min(1))
