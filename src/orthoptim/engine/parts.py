"""The parts of parameters whose views divide them: each part is stepped as a parameter of its own would be."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.engine.state import together
from orthoptim.views import Part, View


class Parts(NamedTuple):
    """What a step works on: tensors that hold matrices of one shape, with their gradients and their state.

    Attributes:
        owners: for each part, the parameter it is a part of.
        params: the parts, views of the memory of the parameters.
        grads: their gradients.
        columns: by name, their state.
        steps: the step counter of each owner, at the first of its parts; None at the others.
    """

    owners: list[Tensor]
    params: list[Tensor]
    grads: list[Tensor]
    columns: dict[str, list[Tensor]]
    steps: list[Tensor | None]


def take_parts(
    params: list[Tensor],
    grads: list[Tensor],
    columns: dict[str, list[Tensor]],
    steps: Sequence[Tensor],
    views: Sequence[View],
    side: str,
    per_matrix: Collection[str],
) -> Parts:
    """Take parameters apart.

    Args:
        params: the parameters.
        grads: their gradients.
        columns: by name, their state: of their own shape, or with a value for each matrix.
        steps: their step counters.
        views: their views; none, where these do not divide.
        side: which side is orthonormal.
        per_matrix: the names of the state that has a value for each matrix.
    """
    if not views:
        return Parts(params, params, grads, columns, list(steps))
    parts = [view.parts(param.shape, side) for view, param in zip(views, params, strict=True)]

    def take(tensors: Sequence[Tensor], slice_of: Callable[[Part, Tensor], Tensor]) -> list[Tensor]:
        return [slice_of(part, tensor) for tensor, each in zip(tensors, parts, strict=True) for part in each]

    return Parts(
        take(params, lambda part, tensor: tensor),
        take(params, Part.entries),
        take(grads, Part.entries),
        {name: take(held, Part.values if name in per_matrix else Part.entries) for name, held in columns.items()},
        [step if i == 0 else None for step, each in zip(steps, parts, strict=True) for i in range(len(each))],
    )


def count_steps(counters: Sequence[Tensor | None]) -> None:
    """Add one to the step counters among these."""
    present = [counter for counter in counters if counter is not None]
    if present:
        torch._foreach_add_(together(present), 1)


def named_parts(named: Sequence[tuple[str, Tensor]], views: Sequence[View], side: str) -> list[tuple[str, Tensor]]:
    """Parameters with their names, taken apart."""
    pairs = zip(views, named, strict=True)
    return [(name, part.entries(param)) for view, (name, param) in pairs for part in view.parts(param.shape, side)]
