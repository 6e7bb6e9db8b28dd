"""Base optimizers: what turns a gradient into the direction G of a leap."""

from orthoptim.base.adam import Adam
from orthoptim.base.base import Base, Kind, State, per_matrix, state_dtype
from orthoptim.base.bb import BB
from orthoptim.base.cg import CG
from orthoptim.base.lbfgs import LBFGS
from orthoptim.base.muon import Muon
from orthoptim.base.sgd import SGD
from orthoptim.base.vadam import VAdam
from orthoptim.stiefel import Direction

__all__ = [
    "BB",
    "CG",
    "LBFGS",
    "SGD",
    "Adam",
    "Base",
    "Direction",
    "Kind",
    "Muon",
    "State",
    "VAdam",
    "per_matrix",
    "state_dtype",
]
