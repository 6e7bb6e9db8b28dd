"""orthoptim: optimize orthogonal and unitary matrices at scale."""

from orthoptim.base import SGD, Adam, Base, Muon, VAdam
from orthoptim.groups import orthogonalize_, param_groups
from orthoptim.optim import POGO, Drift, Orthoptimizer, Update
from orthoptim.views import distance, is_orthogonal, project_

__version__ = "0.1.0"

__all__ = [
    "POGO",
    "SGD",
    "Adam",
    "Base",
    "Drift",
    "Muon",
    "Orthoptimizer",
    "Update",
    "VAdam",
    "distance",
    "is_orthogonal",
    "orthogonalize_",
    "param_groups",
    "project_",
]
