"""How the matrices of one param group are updated: what the engine is told by the contract."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orthoptim.base import Base, Kind


@dataclass(slots=True)
class UpdateRule:
    """A method with the options of one of its param groups.

    Attributes:
        method: the class, an :class:`orthoptim.Orthoptimizer`: its ``update`` and what goes with it.
        group: the param group.
        index: that of the group.
        hyperparameters: those of the base optimizer.
        kinds: what the state holds, by name, beside ``step`` and ``master``.
        options: the values of the group that a plan depends on.
    """

    method: Any
    group: dict[str, Any]
    index: int
    hyperparameters: Mapping[str, Any]
    kinds: Mapping[str, Kind]
    options: tuple[Any, ...]

    @property
    def base(self) -> type[Base]:
        """The base optimizer."""
        return Base.named(self.group["base"])

    @property
    def state_names(self) -> list[str]:
        """The entries of the state of a parameter."""
        return ["step", "master", *self.kinds]
