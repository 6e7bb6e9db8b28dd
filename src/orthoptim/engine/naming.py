"""What to call parameters: in messages, and in the tables of ``drift()`` and ``plan()``."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def names_of(group: Mapping[str, Any]) -> list[str]:
    """The names of a group's parameters; ``params[3]`` for the fourth, where they have none."""
    return list(group["param_names"]) if has_names(group) else [f"params[{i}]" for i in range(len(group["params"]))]


def has_names(group: Mapping[str, Any]) -> bool:
    """Whether a group names its parameters: not where a tool, as ZeroRedundancyOptimizer, has kept some of them."""
    return len(group.get("param_names", ())) == len(group["params"]) > 0


def common_name(names: Sequence[str]) -> str:
    """One name for several parameters.

    Example:
        >>> common_name(["a.weight"]), common_name(["a.weight", "b.weight", "c.weight"])
        ('a.weight', 'a.weight +2 more')
    """
    if len(names) < 2:
        return "".join(names)
    return f"{names[0]} +{len(names) - 1} more"


def named(group: Mapping[str, Any], label: str) -> list[tuple[str, Tensor]]:
    """The parameters of a group with names for error messages."""
    return [(parameter_name(group, position, label), param) for position, param in enumerate(group["params"])]


def parameter_name(group: Mapping[str, Any], position: int, label: str) -> str:
    """``parameter 'attn.weight' (64×64)``, or its place where it has no name."""
    shape = "×".join(map(str, group["params"][position].shape)) or "scalar"
    if has_names(group):
        return f"parameter {group['param_names'][position]!r} ({shape})"
    return f"parameter {position} of {label} ({shape})"
