"""The two types between a method and the engine: how a param group is updated, and what an update returns."""

from collections.abc import Collection
from operator import itemgetter
from typing import Any, NamedTuple

from torch import Tensor

from orthoptim.base import Base, Kind, State, per_matrix

COUNTERS = ("num_updates", "clipped", "rescued")
"""State of every constrained parameter: one count per matrix; but for the first, of the flags of :class:`Update`."""


class Update(NamedTuple):
    """What a method makes of one block.

    Attributes:
        x: the new matrices, (B, p, n).
        state: the new values of the buffers of the method.
        clipped: which matrices had their step shortened, (B,); a bool is for all of them.
        rescued: which matrices were too far from the manifold to land as they were, (B,).
        finiteness_probe: a number per matrix that is finite only if all columns of X are, the same on every rank that
            holds some of them, (B,). ``None``: the engine adds up the entries of X, which over ranks takes one more
            all-reduce.
        covers_direction: whether the probe is finite only if the direction is, too.
        finite: whether it is known that the direction and X are finite.
    """

    x: Tensor
    state: State = {}  # noqa: RUF012  (a NamedTuple default; never changed)
    clipped: Any = None  # Tensor | bool | None
    rescued: Tensor | None = None
    finiteness_probe: Tensor | None = None
    covers_direction: bool = False
    finite: bool = False


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
        replaces_gradient: whether the method has a gradient of its own.
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
