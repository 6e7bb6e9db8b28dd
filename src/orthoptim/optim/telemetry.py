"""What an optimizer tells of itself."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.distributed.detect import full
from orthoptim.views import distance


class Drift(NamedTuple):
    """How far the matrices of one group are from the manifold, and what happened to their steps."""

    group: int
    matrices: int
    mean_distance: float
    max_distance: float
    skipped: int
    clipped: int
    rescued: int = 0


def drift_of(group: Mapping[str, Any], index: int, state: Mapping[Tensor, Mapping[str, Tensor]]) -> Drift:
    """That of a constrained group, the index-th, from its parameters and their state."""
    params = group["params"]
    if not params:
        return Drift(index, 0, 0.0, 0.0, 0, 0)
    distances = [distance(param, view=group["view"], side=group["side"]).reshape(-1) for param in params]
    values = torch.cat([each.double().cpu() for each in distances])
    states = [state[param] for param in params if param in state and "taken" in state[param]]
    skipped = sum(int(s["step"]) * s["taken"].numel() - int(full(s["taken"]).sum()) for s in states)
    clipped, rescued = (sum(int(full(s[name]).sum()) for s in states) for name in ("clipped", "rescued"))
    return Drift(index, len(values), float(values.mean()), float(values.max()), skipped, clipped, rescued)


class Plan(NamedTuple):
    """How one bucket of like matrices is stepped.

    Attributes:
        group: index of its param group.
        matrices: how many there are.
        p: rows, the shorter side.
        n: columns.
        dtype: what is computed in.
        device: where.
        form: the form of the step, for POGO one of :data:`orthoptim.stiefel.FORMS`.
        blocks: in how many pieces.
        strategy: which way its matrices take between ranks, one of :data:`orthoptim.distributed.strategy.STRATEGIES`.
    """

    group: int
    matrices: int
    p: int
    n: int
    dtype: torch.dtype
    device: torch.device
    form: str
    blocks: int
    strategy: str = "local"
