"""Pure functions on batches of matrices (..., p, n) with p ≤ n; no state, no optimizer."""

from orthoptim.stiefel.batches import (
    as_real,
    can_look,
    is_single,
    lerp,
    max_entry,
    norm,
    square_norm,
    subtract_identity,
)
from orthoptim.stiefel.cayley import CAYLEY
from orthoptim.stiefel.cost_model import block_size, choose, multiply_adds
from orthoptim.stiefel.geometry import defect, distance, inner, is_deficient, is_scaled, relative_gradient, skew, sym
from orthoptim.stiefel.hadamard import hadamard
from orthoptim.stiefel.points import nearest, newton_schulz, newton_schulz_step, random, row_qr
from orthoptim.stiefel.policies import POLICIES, Length, Policy, Rescue, half_factors, land, policy, rescue
from orthoptim.stiefel.retractions import (
    METRICS,
    RETRACTIONS,
    Retracted,
    project_where,
    tangent,
    tangent_leap,
    whitening,
)
from orthoptim.stiefel.steps import FORMS, pogo_columns, pogo_step
from orthoptim.stiefel.sums import ColumnSums, Direction, Update, flatten, largest, on_one_device
from orthoptim.stiefel.unrolled import Table, Unrolled, unrolled

__all__ = [
    "CAYLEY",
    "FORMS",
    "METRICS",
    "POLICIES",
    "RETRACTIONS",
    "ColumnSums",
    "Direction",
    "Length",
    "Policy",
    "Rescue",
    "Retracted",
    "Table",
    "Unrolled",
    "Update",
    "as_real",
    "block_size",
    "can_look",
    "choose",
    "defect",
    "distance",
    "flatten",
    "hadamard",
    "half_factors",
    "inner",
    "is_deficient",
    "is_scaled",
    "is_single",
    "land",
    "largest",
    "lerp",
    "max_entry",
    "multiply_adds",
    "nearest",
    "newton_schulz",
    "newton_schulz_step",
    "norm",
    "on_one_device",
    "pogo_columns",
    "pogo_step",
    "policy",
    "project_where",
    "random",
    "relative_gradient",
    "rescue",
    "row_qr",
    "skew",
    "square_norm",
    "subtract_identity",
    "sym",
    "tangent",
    "tangent_leap",
    "unrolled",
    "whitening",
]
