"""Pure functions on batches of matrices (..., p, n) with p ≤ n; no state, no optimizer."""

from orthoptim.stiefel.geometry import (
    defect,
    distance,
    inner,
    max_modulus,
    norm,
    relative_gradient,
    skew,
    subtract_identity,
    sym,
)
from orthoptim.stiefel.landing import POLICIES, Policy, policy
from orthoptim.stiefel.points import nearest, newton_schulz, newton_schulz_step, random, row_qr
from orthoptim.stiefel.retractions import METRICS, RETRACTIONS, project_where, tangent
from orthoptim.stiefel.steps import FORMS, Step, choose, pogo_step

__all__ = [
    "FORMS",
    "METRICS",
    "POLICIES",
    "RETRACTIONS",
    "Policy",
    "Step",
    "choose",
    "defect",
    "distance",
    "inner",
    "max_modulus",
    "nearest",
    "newton_schulz",
    "newton_schulz_step",
    "norm",
    "pogo_step",
    "policy",
    "project_where",
    "random",
    "relative_gradient",
    "row_qr",
    "skew",
    "subtract_identity",
    "sym",
    "tangent",
]
