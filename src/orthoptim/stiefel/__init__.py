"""Pure functions on batches of matrices (..., p, n) with p ≤ n; no state, no optimizer."""

from orthoptim.stiefel.geometry import (
    defect,
    distance,
    inner,
    max_modulus,
    relative_gradient,
    skew,
    subtract_identity,
    sym,
)
from orthoptim.stiefel.landing import POLICIES, Policy, policy
from orthoptim.stiefel.points import nearest, newton_schulz, newton_schulz_step, random, row_qr
from orthoptim.stiefel.steps import FORMS, Step, choose, pogo_step

__all__ = [
    "FORMS",
    "POLICIES",
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
    "pogo_step",
    "policy",
    "random",
    "relative_gradient",
    "row_qr",
    "skew",
    "subtract_identity",
    "sym",
]
