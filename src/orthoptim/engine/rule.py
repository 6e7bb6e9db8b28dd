"""How a param group is updated: a method with its options."""

from collections.abc import Collection
from operator import itemgetter
from typing import Any

from orthoptim.base import Base, Kind, per_matrix
from orthoptim.stiefel.sums import FLAGS

COUNTERS = ("num_updates", *FLAGS)
"""State of every constrained parameter: one count per matrix."""


class UpdateRule:
    """A method with the options of one of its param groups.

    Args:
        method: the class, an :class:`orthoptim.Orthoptimizer`: its ``update`` and what goes with it.
        index: that of the group.
        group: the param group.

    Attributes:
        base: the base optimizer.
        hyperparameters: those of the base optimizer.
        kinds: what the state holds, by name, beside ``step`` and ``master``.
        state_names: the entries of the state of a parameter.
        entries_name: one of them that has the parameter's shape; empty, if there is none.
        replaces_gradient: whether the method gives the base something in the place of the gradient.
        needs_whole: whether the direction is made from whole matrices, not entry by entry.
        matrix_values: the names in ``kinds`` with one value for each matrix.
        matrix_entries: the names of the others that the step of whole matrices needs, where the direction is known.
        options: the values of the group that a plan depends on.
        read: reads from a group the values that the rule depends on.
        values: what it read; the rule is current while it reads the same.
    """

    def __init__(self, method: Any, index: int, group: dict[str, Any]) -> None:
        self.method, self.index, self.group = method, index, group
        self.base = Base.named(group["base"])
        keys = base_keys(self.base, method.option_names)
        self.hyperparameters = {name: group[key] for name, key in keys.items()}
        buffers = {**self.base.buffers(self.hyperparameters), **method.buffers(group)}
        self.kinds: dict[str, Kind] = {**dict.fromkeys(COUNTERS, "counters"), **buffers}
        self.state_names = ["step", "master", *self.kinds]
        self.entries_name = next((name for name, kind in self.kinds.items() if kind == "entries"), "")
        self.replaces_gradient: bool = method.replaces_gradient(group)
        self.needs_whole = self.base.whole_matrix or self.replaces_gradient
        self.matrix_values = sorted(name for name, kind in self.kinds.items() if per_matrix(kind))
        stepped_with = self.kinds if self.needs_whole else method.buffers(group)
        self.matrix_entries = [name for name in stepped_with if name not in self.matrix_values]
        self.options = tuple(group[name] for name in method.plan_options)
        self.read = itemgetter(*method.plan_options, *keys.values())
        self.values = self.read(group)


def base_keys(base: type[Base], method_options: Collection[str]) -> dict[str, str]:
    """Where a group keeps each hyperparameter of its base: under its own name, unless the method has that name."""
    return {name: f"base_{name}" if name in method_options else name for name in base.names}
