"""What :meth:`Orthoptimizer.drift` tells: distances and counters of the parameters of a group."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.distributed import matrices as sharded
from orthoptim.engine.naming import common_name, names_of
from orthoptim.engine.rule import COUNTERS
from orthoptim.engine.telemetry import Drift
from orthoptim.functional import apply_to_matrices
from orthoptim.precision import full_precision
from orthoptim.stiefel.batches import max_entry
from orthoptim.tensors import is_dtensor, local_part
from orthoptim.views import View

_MAYBE_DEFICIENT = 0.99  # a matrix without full rank is at distance 1 at least, up to rounding


def drift_of(
    groups: Mapping[int, Mapping[str, Any]],
    state: Mapping[Tensor, Mapping[str, Tensor]],
    per_parameter: bool = False,
) -> list[Drift]:
    """The rows of constrained groups, by their index: one for each group, or one for each parameter.

    Each matrix of a DTensor is measured on one rank; the number of collectives does not depend on that of parameters.
    """
    params = [param for group in groups.values() for param in group["params"]]
    views = [
        (View.of(group["view"]).scaled(group["scale"]), group["side"])
        for group in groups.values()
        for _ in group["params"]
    ]
    measured = _measure_all(params, views, state)
    rows: list[Drift] = []
    for index, group in groups.items():
        names, of_group = names_of(group), []
        for name in names:
            matrices, total, far, num_updates, clipped, rescued, deficient, steps = next(measured)
            mean = total / matrices if matrices else 0.0
            skipped = int(steps * matrices - num_updates) if steps else 0
            counts = (skipped, int(clipped), int(rescued), int(deficient))
            of_group.append(Drift(index, int(matrices), mean, far if matrices else 0.0, *counts, name))
        rows.extend(of_group if per_parameter else [_together(of_group, index, common_name(names))])
    return rows


def _measure_all(
    params: Sequence[Tensor], views: Sequence[tuple[View, str]], state: Mapping[Tensor, Mapping[str, Tensor]]
) -> Iterator[tuple[float, ...]]:
    """Yield for each parameter what the names in :func:`drift_of` say."""
    given = [(param, *view) for param, view in zip(params, views, strict=True)]
    dtensors = [sharded.Matrices(param, view, side) for param, view, side in given if is_dtensor(param)]
    with full_precision(*{param.device for param in params}):
        measured = apply_to_matrices(given, _measure, numbers=2)
    sums, tops = [], []
    for param, values in zip(params, measured, strict=True):
        distances, deficient = (each.reshape(-1).cpu().double() for each in values)
        own = state.get(param, {})
        counters = [local_part(own[name]).sum().item() if name in own else 0 for name in COUNTERS]
        sums.append([len(distances), float(distances.sum()), *counters, float(deficient.sum())])
        tops.append(float(distances.max()) if len(distances) else -torch.inf)
    if dtensors:
        places = [i for i, param in enumerate(params) if is_dtensor(param)]
        device = dtensors[0].param.device
        rows = torch.tensor([sums[i] for i in places], dtype=torch.float64, device=device)
        local_tops = [torch.tensor(tops[i], dtype=torch.float64, device=device) for i in places]
        maxima = sharded.largest([each.param for each in dtensors], local_tops)
        for i, row, top in zip(places, sharded.sum_over_ranks(dtensors, rows).tolist(), maxima, strict=True):
            sums[i], tops[i] = row, top
    for param, (count, total, *counted), top in zip(params, sums, tops, strict=True):
        steps = float(state[param]["step"]) if "num_updates" in state.get(param, {}) else 0.0
        yield count, total, top, *counted, steps


def _together(rows: Sequence[Drift], index: int, name: str) -> Drift:
    matrices = sum(row.matrices for row in rows)
    if not matrices:
        return Drift(index, 0, 0.0, 0.0, 0, 0, name=name)
    mean = sum(row.mean_distance * row.matrices for row in rows) / matrices
    # of tensors, since max() of Python would pass over a NaN
    largest = float(torch.tensor([row.max_distance for row in rows], dtype=torch.float64).max())
    skipped, clipped, rescued, deficient = (sum(column) for column in zip(*(row[4:8] for row in rows), strict=True))
    return Drift(index, matrices, mean, largest, skipped, clipped, rescued, deficient, name)


def _measure(x: Tensor) -> list[Tensor]:
    """The distances of matrices (..., p, n), and 1 for each that does not have full rank, else 0."""
    distances = stiefel.distance(x)
    deficient = torch.zeros_like(distances)
    near = distances < _MAYBE_DEFICIENT
    if not bool(near.all()):
        deficient[~near] = _is_deficient(x[~near])
    return [distances, deficient]


def _is_deficient(x: Tensor) -> Tensor:
    """1 for each of the finite matrices (B, p, n) that steps would not bring back, else 0."""
    finite = torch.isfinite(max_entry(x))
    return (stiefel.is_deficient(x) & finite).to(x.real.dtype)
