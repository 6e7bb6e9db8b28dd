"""The data and the objective of the orthogonal Procrustes problem."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.harness.experiment import DTYPES, Config
from orthoptim_experiments.problems.matrix import MatrixProblem, start


class Instance(NamedTuple):
    """The data of one seed, in double precision."""

    a: Tensor
    b: Tensor
    optimum: float
    start: Tensor


@lru_cache(maxsize=1)
def instance(n: int, seed: int, dtype: str) -> Instance:
    """Two Gaussian matrices whose entries the dtype can hold, the least value, and a start.

    The optimum is the polar factor of AᵀB (the paper says of AB). No continuous path leads from determinant 1 to −1, so
    the start must have that of the optimum: else every method stops at a gap that tells nothing of it.
    """
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(n, n, dtype=torch.float64, generator=generator).to(DTYPES[dtype]).double() for _ in range(2))
    best = oo.project_(a.mT @ b)
    x = start(n, n, generator)
    if torch.linalg.slogdet(x).sign != torch.linalg.slogdet(best).sign:
        x[0] *= -1
    return Instance(a, b, float((a @ best - b).square().sum()) / (2 * n), x)


class ProcrustesProblem(MatrixProblem):
    """Minimise ‖AX − B‖²/2n."""

    def __init__(self, config: Config, seed: int, dtype: str) -> None:
        data = instance(config["n"], seed, dtype)
        self.exact = data.a.to(config["device"]), data.b.to(config["device"])
        self.a, self.b = (matrix.to(DTYPES[dtype]) for matrix in self.exact)
        self.n: int = config["n"]
        super().__init__(config, data.start.to(self.a), data.optimum)

    def differentiate(self) -> None:
        """See :meth:`MatrixProblem.differentiate`."""
        self.residual = self.a @ self.x.detach() - self.b
        self.x.grad = self.a.mT @ self.residual / self.n

    def value(self) -> float:
        """See :meth:`MatrixProblem.value`."""
        return float(self.residual.double().square().sum()) / (2 * self.n)

    def value_at(self, x: Tensor) -> float:
        """See :meth:`MatrixProblem.value_at`."""
        a, b = self.exact
        return float((a @ x - b).square().sum()) / (2 * self.n)
