"""When the learning rate is halved and training stops, by the validation bits per dimension after each epoch."""

import math
from collections.abc import Mapping
from typing import Any

import torch

GAIN = 1e-3
"""The gain in bits per dimension that keeps training from stopping early."""


class Schedule:
    """Halves the learning rate on a plateau, and tells when to stop.

    Args:
        optimizer: whose learning rate it is.
        plateau: epochs in a row without progress after which it is halved.
        progress: bits per dimension to gain since the last progress.
        patience: epochs without a gain of ``GAIN`` after which training stops.

    Attributes:
        epochs: how many it has seen.
        best: the bits per dimension that later ones have to beat by ``GAIN``.
        stalled: epochs since it was beaten.

    Example:
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        >>> schedule = Schedule(optimizer, plateau=10, progress=0.01, patience=20)
        >>> for _ in range(11):
        ...     schedule.see(1.3)
        >>> schedule.lr, schedule.stalled, schedule.exhausted
        (0.5, 10, False)
    """

    def __init__(self, optimizer: torch.optim.Optimizer, plateau: int, progress: float, patience: int) -> None:
        self.optimizer, self.patience = optimizer, patience
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer,
            factor=0.5,
            patience=plateau - 1,  # torch halves in the epoch after so many
            threshold=progress,
            threshold_mode="abs",
            eps=0.0,
        )
        self.epochs, self.best, self.stalled = 0, math.inf, 0

    @property
    def lr(self) -> float:
        """The learning rate."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def exhausted(self) -> bool:
        """Whether to stop."""
        return self.stalled >= self.patience

    def see(self, bpd: float) -> None:
        """Take the validation bits per dimension after one more epoch."""
        self.epochs += 1
        self.plateau.step(bpd)
        if bpd < self.best - GAIN:
            self.best, self.stalled = bpd, 0
        else:
            self.stalled += 1

    def state_dict(self) -> dict[str, Any]:
        """The state without the learning rate, which the optimizer keeps."""
        plain = {"epochs": self.epochs, "best": self.best, "stalled": self.stalled}
        return {**plain, "plateau": self.plateau.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        self.epochs, self.best, self.stalled = state["epochs"], state["best"], state["stalled"]
        self.plateau.load_state_dict(state["plateau"])
