"""What an optimizer tells of itself."""

from typing import NamedTuple

import torch


class Drift(NamedTuple):
    """How far the matrices of one group are from the manifold, and what happened to their steps."""

    group: int
    matrices: int
    mean_distance: float
    max_distance: float
    skipped: int
    clipped: int


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
