"""orthoptim: optimize orthogonal and unitary matrices at scale."""

from orthoptim.averaging import ema_multi_avg_fn
from orthoptim.base import BB, CG, LBFGS, SGD, Adam, Base, Muon, VAdam
from orthoptim.checkpoint import save
from orthoptim.distributed.placements import long_dim_placement
from orthoptim.functional import distance, is_orthogonal, orthogonalize_, project_
from orthoptim.groups import adopt_, param_groups
from orthoptim.optim import (
    POGO,
    RGD,
    RSDM,
    SLPG,
    Drift,
    Landing,
    LandingPC,
    LineSearch,
    Orthoptimizer,
    Plan,
    StiefelMuon,
    Update,
    wrap,
)
from orthoptim.views import View

__version__ = "0.2.0"

__all__ = [
    "BB",
    "CG",
    "LBFGS",
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
    "LineSearch",
    "Muon",
    "Orthoptimizer",
    "Plan",
    "StiefelMuon",
    "Update",
    "VAdam",
    "View",
    "adopt_",
    "distance",
    "ema_multi_avg_fn",
    "is_orthogonal",
    "long_dim_placement",
    "orthogonalize_",
    "param_groups",
    "project_",
    "save",
    "wrap",
]
