"""The data and the objective of online PCA."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim_experiments.harness.experiment import DTYPES, Config
from orthoptim_experiments.problems.matrix import MatrixProblem, start


class Instance(NamedTuple):
    """The data of one seed, in double precision."""

    a: Tensor
    optimum: float
    start: Tensor


@lru_cache(maxsize=2)  # trials go seed by seed: the methods of one seed share it, in two dtypes at most
def instance(p: int, n: int, variant: str, seed: int, dtype: str) -> Instance:
    """A symmetric matrix whose entries the dtype can hold, the least value, and a start.

    The spectrum D decays exponentially from 10 to 0.01. "paper": A = QDQᵀ, of condition number 1000 as the text says.
    "code": A = sym(QDQ), the indefinite matrix of the published script, on which the learning rates were tuned.
    """
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))
    spectrum = 10 * torch.logspace(-3, 0, n, dtype=torch.float64)
    a = (q * spectrum) @ (q if variant == "code" else q.mT)
    a = (0.5 * (a + a.mT)).to(DTYPES[dtype]).double()
    optimum = -0.5 * float(torch.linalg.eigvalsh(a)[-p:].sum())
    return Instance(a, optimum, start(p, n, generator))


class PCAProblem(MatrixProblem):
    """Minimise −½ tr(XAXᵀ)."""

    def __init__(self, config: Config, seed: int, dtype: str) -> None:
        data = instance(config["p"], config["n"], config["variant"], seed, dtype)
        self.exact = data.a.to(config["device"])
        self.a = self.exact.to(DTYPES[dtype])
        super().__init__(config, data.start.to(self.a), data.optimum)

    def differentiate(self) -> None:
        """See :meth:`MatrixProblem.differentiate`."""
        self.xa = self.x.detach() @ self.a
        self.x.grad = -self.xa

    def value(self) -> float:
        """See :meth:`MatrixProblem.value`."""
        return -0.5 * float((self.x.detach().double() * self.xa.double()).sum())

    def value_at(self, x: Tensor) -> float:
        """See :meth:`MatrixProblem.value_at`."""
        return -0.5 * float(((x @ self.exact) * x).sum())
