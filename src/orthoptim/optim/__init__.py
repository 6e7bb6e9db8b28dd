"""The orthoptimizers."""

from orthoptim.engine.telemetry import Drift, Plan
from orthoptim.optim.landing import Landing
from orthoptim.optim.landingpc import LandingPC
from orthoptim.optim.line_search import LineSearch
from orthoptim.optim.orthoptimizer import Orthoptimizer
from orthoptim.optim.pogo import POGO
from orthoptim.optim.rgd import RGD
from orthoptim.optim.rsdm import RSDM
from orthoptim.optim.slpg import SLPG
from orthoptim.optim.stiefel_muon import StiefelMuon
from orthoptim.optim.wrap import wrap
from orthoptim.stiefel import Update

__all__ = [
    "POGO",
    "RGD",
    "RSDM",
    "SLPG",
    "Drift",
    "Landing",
    "LandingPC",
    "LineSearch",
    "Orthoptimizer",
    "Plan",
    "StiefelMuon",
    "Update",
    "wrap",
]
