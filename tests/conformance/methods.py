"""The methods under test. To put a new one under the contract, add a line."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import orthoptim as oo
from tests.worked.base import AdaGradNorm
from tests.worked.method import LeapAndPolish

Method = Callable[..., oo.Orthoptimizer]


def method(cls: type[oo.Orthoptimizer], **defaults: Any) -> Method:
    """A constructor with the learning rate and options the contract is tested with."""

    def make(params: Any, **options: Any) -> oo.Orthoptimizer:
        return cls(params, **{**defaults, **options})

    return make


METHODS: dict[str, Method] = {
    "pogo": method(oo.POGO, lr=0.1),
    "pogo-sgd": method(oo.POGO, lr=0.01, base=oo.SGD(momentum=0.9)),
    "pogo-muon": method(oo.POGO, lr=0.05, base=oo.Muon()),
    "pogo-strict": method(oo.POGO, lr=0.1, landing="strict"),
    "pogo-bb": method(oo.POGO, base=oo.BB(), lr=0.1),
    "pogo-cg": method(oo.POGO, base=oo.CG(), lr=0.1),
    "pogo-lbfgs": method(oo.POGO, base=oo.LBFGS(history_size=2), lr=0.1),
    "rgd": method(oo.RGD, lr=0.05),
    "rgd-polar": method(oo.RGD, lr=0.05, metric="canonical", retraction="polar"),
    "rgd-cholesky": method(oo.RGD, lr=0.05, base=oo.VAdam(), retraction="cholesky"),
    "rgd-cayley": method(oo.RGD, lr=0.05, retraction="cayley"),
    "rgd-cayley-iterative": method(oo.RGD, lr=0.05, retraction="cayley-iterative"),
    "rsdm": method(oo.RSDM, lr=0.1, r=2),
    "rsdm-permutation": method(oo.RSDM, lr=0.1, r=2, sampling="permutation"),
    "landing": method(oo.Landing, lr=0.01, base=oo.SGD(momentum=0.1)),
    "landing-vadam": method(oo.Landing, lr=0.02, base=oo.VAdam()),
    "landingpc": method(oo.LandingPC, lr=0.02),
    "landingpc-decoupled": method(oo.LandingPC, lr=0.02, lam=0.5, coupled=False),
    "slpg": method(oo.SLPG, lr=0.01),
    "slpg-bb": method(oo.SLPG, lr=0.01, barzilai_borwein=True),
    "stiefelmuon": method(oo.StiefelMuon, lr=0.05),
    "worked-base": method(oo.POGO, lr=0.1, base=AdaGradNorm()),
    "worked-method": method(LeapAndPolish, lr=0.05),
}

# One of each body of a step; the others have their own options of the same bodies.
COMPILED = {"pogo", "pogo-muon", "pogo-bb", "rgd", "rsdm", "landing", "landingpc", "slpg-bb", "worked-method"}

every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


def point(*shape: int, dtype: torch.dtype = torch.float32, view: str = "matrix", side: str = "auto", seed: int = 0):
    """A parameter with orthonormal matrices."""
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.empty(*shape, dtype=dtype)
    oo.orthogonalize_(tensor, view=view, side=side, init="random", generator=generator)
    return torch.nn.Parameter(tensor)


def set_gradients(params, t: int = 0, scale: float = 1.0) -> None:
    """Gradients that depend on the parameter, the step and the place, and on nothing else."""
    for index, param in enumerate(params):
        generator = torch.Generator().manual_seed(1000 * index + t)
        noise = torch.randn(param.shape, dtype=torch.float64, generator=generator).to(param.dtype)
        param.grad = scale * (noise + param.detach() * (index + 1))


def steps(opt: torch.optim.Optimizer, params, count: int, start: int = 0) -> None:
    for t in range(start, start + count):
        set_gradients(params, t)
        opt.step()


def clones(params):
    return [torch.nn.Parameter(p.detach().clone()) for p in params]
