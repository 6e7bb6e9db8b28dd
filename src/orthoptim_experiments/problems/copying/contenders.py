"""The contenders that only this experiment knows: registered when it is imported."""

from typing import NamedTuple

import torch

import orthoptim as oo
from orthoptim_experiments.harness.methods import METHODS, Method


class Network(NamedTuple):
    """How a contender keeps W orthogonal (see :data:`model.KINDS`; ``"lstm"``: it has none), and of which numbers."""

    kind: str
    dtype: torch.dtype = torch.float32


NETWORKS = {
    "POGO": Network("parameter"),
    "POGO-Adam": Network("parameter"),
    "exp-Adam": Network("matrix_exp"),
    "cayley-Adam": Network("cayley"),
    "geotorch-Adam": Network("geotorch"),
    "POGO-complex": Network("parameter", torch.complex64),
    "POGO-Adam-complex": Network("parameter", torch.complex64),
    "exp-Adam-complex": Network("matrix_exp", torch.complex64),
    "cayley-Adam-complex": Network("cayley", torch.complex64),
    "LSTM": Network("lstm"),
}

_ADAM = torch.optim.Adam
_WITH_ADAM = {"base": "Adam", "landing": "half"}
METHODS |= {
    method.name: method
    for method in (
        Method("POGO-Adam", "POGO with Adam", oo.POGO, "#E69F00", fixed=_WITH_ADAM),
        Method("POGO-Adam-complex", "the same, unitary", oo.POGO, "#E69F00", "dash", fixed=_WITH_ADAM),
        Method("POGO-complex", "POGO, unitary", oo.POGO, "#D55E00", "dash", fixed={"landing": "half"}),
        Method("exp-Adam", "torch's parametrization by the exponential, Adam", _ADAM, "#117733"),
        Method("exp-Adam-complex", "the same, unitary", _ADAM, "#117733", "dash"),
        Method("cayley-Adam", "torch's parametrization by Cayley's transform, Adam", _ADAM, "#0072B2"),
        Method("cayley-Adam-complex", "the same, unitary", _ADAM, "#0072B2", "dash"),
        Method("geotorch-Adam", "geotorch's parametrization, Adam (peer)", _ADAM, "#AA4499", peer="geotorch"),
        Method("LSTM", "torch's LSTM, Adam", _ADAM, "#000000", "dot"),
    )
}
