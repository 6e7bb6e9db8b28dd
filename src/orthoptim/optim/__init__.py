"""The orthoptimizers."""

from orthoptim.optim.orthoptimizer import Drift, Orthoptimizer, Update
from orthoptim.optim.pogo import POGO

__all__ = ["POGO", "Drift", "Orthoptimizer", "Update"]
