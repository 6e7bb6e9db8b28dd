"""What the callbacks of all trainers do: measure the drift of an optimizer, and act if it is too large."""

from typing import Any, Literal, get_args

from orthoptim.engine.telemetry import DriftTable
from orthoptim.functional import project_
from orthoptim.optim.orthoptimizer import Orthoptimizer
from orthoptim.optim.wrap import Wrapped
from orthoptim.user_warnings import warn_user
from orthoptim.validation import check_choice, check_positive

Action = Literal["warn", "stop", "project"]
"""What to do about a distance above the limit. All of them warn."""


class DriftWatch:
    """Measures orthoptimizers, and acts if a matrix is farther from the manifold than it should be.

    Args:
        limit: the largest distance ‖XXᴴ − I‖_F that is fine.
        action: ``"warn"``; ``"stop"``: ask the trainer to stop; ``"project"``: replace the matrices of the group by the
            nearest orthonormal ones.
        per_parameter: report each parameter rather than each group.

    Example:
        >>> import torch
        >>> import orthoptim as oo
        >>> opt = oo.POGO([torch.nn.Parameter(torch.eye(3))], lr=0.1)
        >>> watch = DriftWatch(limit=1e-3)
        >>> watch.measure(opt)["group0/max_distance"], watch.exceeded
        (0.0, False)
    """

    exceeded: bool = False
    """Whether the last measurement was above the limit."""

    def __init__(self, limit: float = 1e-3, action: Action = "warn", per_parameter: bool = False) -> None:
        check_positive("limit", limit)
        check_choice("action", action, get_args(Action))
        self.limit, self.action, self.per_parameter = limit, action, per_parameter

    def measure(self, optimizer: object) -> dict[str, float]:
        """Numbers for a logger; empty for an optimizer that has no orthogonal parameters.

        Collective for sharded parameters: every rank must call it. It waits for the device.
        """
        self.exceeded = False
        optimizer = bare(optimizer)
        if not isinstance(optimizer, Orthoptimizer | Wrapped):
            return {}
        table = optimizer.drift(per_parameter=self.per_parameter)
        far = [row for row in table if not row.max_distance <= self.limit]  # a NaN is far, too
        if far:
            self._act(optimizer, table, far[0].name, far[0].max_distance)
        return table.as_dict()

    def _act(self, optimizer: "Orthoptimizer | Wrapped", table: DriftTable, name: str, distance: float) -> None:
        self.exceeded = True
        done = {"warn": "", "stop": "; training is stopped", "project": "; its group was projected"}[self.action]
        warn_user(f"parameter {name!r} is {distance:.1e} from orthonormal, beyond the limit {self.limit:g}{done}")
        if self.action == "project":
            far = {row.group for row in table if not row.max_distance <= self.limit}
            for index, group in enumerate(constrained_groups(optimizer)):
                if index in far:
                    for param in group["params"]:
                        project_(param, view=group["view"], side=group["side"], scale=group["scale"])


def bare(optimizer: Any) -> Any:
    """The optimizer inside of what Lightning and accelerate put around it."""
    while not isinstance(optimizer, Orthoptimizer | Wrapped) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def constrained_groups(optimizer: "Orthoptimizer | Wrapped") -> list[dict[str, Any]]:
    """The param groups that ``drift`` counts; for a wrapped optimizer those of its landing."""
    return (optimizer.lander if isinstance(optimizer, Wrapped) else optimizer).param_groups
