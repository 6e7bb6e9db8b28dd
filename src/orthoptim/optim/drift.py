"""What :meth:`Orthoptimizer.drift` tells: distances and counters of the parameters of a group."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from orthoptim.distributed import dtensor_ops
from orthoptim.engine.naming import common_name, names_of
from orthoptim.engine.telemetry import Drift
from orthoptim.functional import distance
from orthoptim.precision import full_precision
from orthoptim.tensors import compute_dtype, full, is_dtensor
from orthoptim.views import View, ViewLike

_MAYBE_DEFICIENT = 0.99  # a matrix without full rank is at distance 1 at least, up to rounding


def drift_of(
    group: Mapping[str, Any],
    index: int,
    state: Mapping[Tensor, Mapping[str, Tensor]],
    per_parameter: bool = False,
) -> list[Drift]:
    """The rows of a constrained group, the index-th: one, or one for each parameter."""
    view, side = group["view"], group["side"]
    names = names_of(group)
    rows: list[Drift] = []
    for name, param in zip(names, group["params"], strict=True):
        values = distance(param, view=view, side=side).reshape(-1).double().cpu()
        deficient = _count_deficient(param, view, side) if not bool((values < _MAYBE_DEFICIENT).all()) else 0
        skipped, clipped, rescued = _counts(state.get(param, {}))
        distances = (float(values.mean()), float(values.max())) if len(values) else (0.0, 0.0)  # of an empty batch
        rows.append(Drift(index, len(values), *distances, skipped, clipped, rescued, deficient, name))
    return rows if per_parameter else [_together(rows, index, common_name(names))]


def _together(rows: Sequence[Drift], index: int, name: str) -> Drift:
    matrices = sum(row.matrices for row in rows)
    if not matrices:
        return Drift(index, 0, 0.0, 0.0, 0, 0, name=name)
    mean = sum(row.mean_distance * row.matrices for row in rows) / matrices
    # of tensors, since max() of Python would pass over a NaN
    largest = float(torch.tensor([row.max_distance for row in rows], dtype=torch.float64).max())
    skipped, clipped, rescued, deficient = (sum(column) for column in zip(*(row[4:8] for row in rows), strict=True))
    return Drift(index, matrices, mean, largest, skipped, clipped, rescued, deficient, name)


def _counts(state: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """Steps of a parameter's matrices that were skipped, clipped and rescued."""
    if "num_updates" not in state:
        return 0, 0, 0
    taken, clipped, rescued = (int(full(state[name]).sum()) for name in ("num_updates", "clipped", "rescued"))
    return int(state["step"]) * state["num_updates"].numel() - taken, clipped, rescued


def _count_deficient(param: Tensor, view: ViewLike, side: str) -> int:
    """How many matrices do not have full rank; collective for a DTensor."""
    with full_precision(param.device):
        if is_dtensor(param):
            found: Tensor = dtensor_ops.measure(param, View.of(view), side, _is_deficient)
        else:
            matrices = View.of(view).to_matrices(param.detach().to(compute_dtype(param.dtype)), side)
            found = View.of(view).join_values([_is_deficient(x) for x in matrices])
    return int(found.sum())


def _is_deficient(x: Tensor) -> Tensor:
    """1 for each of the matrices (B, p, n) whose rank is below p up to rounding, else 0."""
    largest = x.abs().amax((-2, -1), keepdim=True)
    usable = torch.isfinite(largest)
    # the squares of entries of size one neither overflow nor underflow
    x = torch.where(usable, x / largest.clamp_min(torch.finfo(largest.dtype).tiny), 0)
    eigenvalues = torch.linalg.eigvalsh(x @ x.mH)
    u = torch.finfo(eigenvalues.dtype).eps / 2
    low: Tensor = eigenvalues[..., 0] <= x.shape[-2] * u * eigenvalues[..., -1]
    return (low & usable[..., 0, 0]).to(eigenvalues.dtype)
