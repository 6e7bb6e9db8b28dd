"""Deterministic problems with known optima, in float64."""

from typing import NamedTuple

import torch
from torch import Tensor

import orthoptim as oo


class Problem(NamedTuple):
    """A function on the manifold, its gradient at X, its least value, and a start."""

    value: object
    gradient: object
    optimum: float
    start: Tensor

    def gap(self, x: Tensor) -> float:
        return abs(float(self.value(x)) - self.optimum) / abs(self.optimum)


def pca(p: int, n: int, variant: str, seed: int) -> Problem:
    """−½ tr(XAXᴴ); "paper": A of condition number 1000; "code": the indefinite A of the published script."""
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))
    spectrum = 10 * torch.logspace(-3, 0, n, dtype=torch.float64)
    a = (q * spectrum) @ (q if variant == "code" else q.T)
    a = 0.5 * (a + a.T)
    optimum = -0.5 * float(torch.linalg.eigvalsh(a)[-p:].sum())
    start = oo.orthogonalize_(torch.empty(p, n, dtype=torch.float64), init="random", generator=generator)
    return Problem(lambda x: -0.5 * ((x @ a) * x).sum(), lambda x: -x @ a, optimum, start)


def procrustes(n: int, seed: int) -> Problem:
    """‖AX − B‖²/2n over the orthogonal group, from a start in the component (sign of det) of the optimum."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(n, n, dtype=torch.float64, generator=generator) for _ in range(2))
    best = oo.project_(a.T @ b)

    def value(x: Tensor) -> Tensor:
        return (a @ x - b).square().sum() / (2 * n)

    start = oo.orthogonalize_(torch.empty(n, n, dtype=torch.float64), init="random", generator=generator)
    if torch.linalg.slogdet(start).sign != torch.linalg.slogdet(best).sign:
        start[0] *= -1
    return Problem(value, lambda x: a.T @ (a @ x - b) / n, float(value(best)), start)


def iterations(problem: Problem, make, limit: int, tolerance: float = 1e-6) -> int | None:
    """Steps until the gap is below the tolerance; None if the limit comes first."""
    x = torch.nn.Parameter(problem.start.clone())
    opt = make([x])
    for t in range(1, limit + 1):
        x.grad = problem.gradient(x.detach())
        opt.step()
        if problem.gap(x.detach()) < tolerance:
            return t
    return None
