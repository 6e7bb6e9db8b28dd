"""orthoptim: optimize orthogonal and unitary matrices at scale."""

from orthoptim.base import BB, SGD, Adam, Base, Muon, VAdam
from orthoptim.checkpoint import save
from orthoptim.distributed.placement import long_dim_placement
from orthoptim.functional import distance, is_orthogonal, orthogonalize_, project_
from orthoptim.groups import param_groups
from orthoptim.optim import (
    POGO,
    RGD,
    RSDM,
    SLPG,
    Drift,
    Landing,
    LandingPC,
    Orthoptimizer,
    Plan,
    StiefelMuon,
    Update,
    wrap,
)
from orthoptim.views import View

__version__ = "0.1.0"

__all__ = [
    "BB",
    "POGO",
    "RGD",
    "RSDM",
    "SGD",
    "SLPG",
    "Adam",
    "Base",
    "Drift",
    "Landing",
    "LandingPC",
    "Muon",
    "Orthoptimizer",
    "Plan",
    "StiefelMuon",
    "Update",
    "VAdam",
    "View",
    "distance",
    "is_orthogonal",
    "long_dim_placement",
    "orthogonalize_",
    "param_groups",
    "project_",
    "save",
    "wrap",
]
