"""Slow and obvious: one matrix at a time, in double precision, straight from the formulas. The oracle of the tests."""

from fractions import Fraction

import numpy as np


def double(a):
    """A tensor or array as float64 or complex128."""
    a = np.asarray(a.resolve_conj() if hasattr(a, "resolve_conj") else a)
    return a.astype(np.complex128 if np.iscomplexobj(a) else np.float64)


def each(f, *batches):
    """Loop f over matrices (..., p, n) and scalars (...) of one batch shape, the first argument being matrices."""
    batches = [double(b) for b in batches]
    batch = batches[0].shape[:-2]
    results = [f(*(b[index] for b in batches)) for index in np.ndindex(batch)]
    return np.stack(results).reshape(batch + np.shape(results[0]))


def adjoint(a):
    return a.conj().T


def defect(x):
    """XXᴴ − I."""
    return x @ adjoint(x) - np.eye(len(x))


def spectral_distance(x):
    """‖XXᴴ − I‖₂."""
    return np.linalg.norm(defect(x), 2)


def polar(y):
    """(YYᴴ)^(−½) Y, for Y of full rank."""
    values, vectors = np.linalg.eigh(y @ adjoint(y))
    return vectors / np.sqrt(values) @ adjoint(vectors) @ y


# One step of POGO


def relative_gradient(x, g):
    """R = X Skew(XᴴG)."""
    a = adjoint(x) @ g
    return x @ (a - adjoint(a)) / 2


def land(m, scale):
    """M + λ(I − MMᴴ)M."""
    return m - scale * defect(m) @ m


def landing_quartic(c):
    """P(1/z)·z⁴/t₂ as a monic polynomial of z, from the highest power, with t_k = tr Cᵏ."""
    e = np.linalg.eigvalsh(c)
    size = np.linalg.norm(e)
    t3, t4, t5, t6 = (size ** (k - 2) * np.sum((e / size) ** k) for k in (3, 4, 5, 6))
    return [1, -4 * (1 + t3), 4 + 10 * t3 + 6 * t4, -4 * (t3 + 2 * t4 + t5), t4 + 2 * t5 + t6]


def root(c):
    """Re λ of the conjugate pair of roots of P with the smallest |λ|: its mean, as each alone is only known to √u."""
    if not c.any():
        return 0.5
    z = np.roots(landing_quartic(c))
    z = z[np.argsort(-abs(z))]
    return np.mean((1 / z[:2]).real)


def argmin(c):
    """The least positive real λ with P′(λ) = 0: in z, the largest real root of −a₃z³ − 2a₂z² − 3a₁z − 4a₀."""
    if not c.any():
        return 0.5
    _, a3, a2, a1, a0 = landing_quartic(c)
    z = np.roots([a3, 2 * a2, 3 * a1, 4 * a0])
    return 1 / z.real[abs(z.imag) <= 1e-7 * abs(z)].max()


def pogo_step(x, g, lr, landing, steps=2):
    """X⁺ for one of the landing policies; ``steps`` is the k of newton-schulz."""
    clip, repeat = {"safe": (1, 1), "strict": (0.5, 3), "newton-schulz": (np.inf, steps)}.get(landing, (np.inf, 1))
    r = relative_gradient(x, g)
    length = np.linalg.norm(r)
    m = x - (min(lr, clip / length) if length > 0 else lr) * r
    for _ in range(repeat):
        m = land(m, {"root": root, "argmin": argmin}.get(landing, lambda c: 0.5)(defect(m)))
    return m


def pogo_run(x0, grads, lr, base, landing):
    """The points after each step, for a sequence of gradients or a function of the point."""
    x, points = x0, []
    for g in grads:
        x = pogo_step(x, base(g(x) if callable(g) else g), lr, landing)
        points.append(x)
    return points


# Base optimizers: called with one gradient after the other, each returns the direction


class SGD:
    def __init__(self, momentum=0, dampening=0, nesterov=False):
        self.momentum, self.dampening, self.nesterov = momentum, dampening, nesterov
        self.buffer = None

    def __call__(self, g):
        if self.momentum == 0:
            return g
        self.buffer = g if self.buffer is None else self.momentum * self.buffer + (1 - self.dampening) * g
        return g + self.momentum * self.buffer if self.nesterov else self.buffer


class Adam:
    def __init__(self, betas=(0.9, 0.999), eps=1e-8):
        (self.beta1, self.beta2), self.eps = betas, eps
        self.t, self.m, self.v = 0, 0, 0

    def square(self, g):
        return abs(g) ** 2

    def __call__(self, g):
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * self.square(g)
        correction1, correction2 = (float(1 - Fraction(beta) ** self.t) for beta in (self.beta1, self.beta2))
        return self.m / correction1 / (np.sqrt(self.v / correction2) + self.eps)


class VAdam(Adam):
    def square(self, g):
        return np.sum(abs(g) ** 2)


class Muon:
    def __init__(self, momentum=0.95, nesterov=True, steps=5):
        self.momentum, self.nesterov, self.steps = momentum, nesterov, steps
        self.buffer = 0

    def __call__(self, g):
        self.buffer = self.momentum * self.buffer + (1 - self.momentum) * g
        y = self.momentum * self.buffer + (1 - self.momentum) * g if self.nesterov else self.buffer
        y = y / np.linalg.norm(y)
        for _ in range(self.steps):
            a = y @ adjoint(y)
            y = 3.4445 * y - 4.7750 * a @ y + 2.0315 * a @ a @ y
        return y
