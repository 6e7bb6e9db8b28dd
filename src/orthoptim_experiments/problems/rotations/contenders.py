"""The contenders that only this experiment knows: registered when it is imported."""

import torch

import orthoptim as oo
from orthoptim_experiments.harness.methods import METHODS, Method, Params
from orthoptim_experiments.problems.rotations.sgdg import SGDG


def _sgdg(params: Params, lr: float, momentum: float = 0.9) -> torch.optim.Optimizer:
    """Cayley SGD with the defects of the programs that are passed around."""
    return SGDG(params, lr, momentum)


def _nothing(params: Params) -> torch.optim.Optimizer:
    """For contenders that learn nothing."""
    return torch.optim.SGD(params, lr=0.0)


METHODS |= {
    method.name: method
    for method in (
        Method("POGO-SGD", "POGO with momentum", oo.POGO, "#117733", "dash", fixed={"base": "SGD"}),
        Method("RGD-cayley", "RGD by Cayley's transform", oo.RGD, "#88CCEE", fixed={"retraction": "cayley"}),
        Method("SGDG", "Cayley SGD as programs pass it around", _sgdg, "#DDCC77", "dash"),
        Method("none", "no rotation", _nothing, "#000000"),
        Method("random", "random orthogonal matrices", _nothing, "#666666"),
        Method("hadamard", "random Hadamard matrices", _nothing, "#BBBBBB"),
    )
}
