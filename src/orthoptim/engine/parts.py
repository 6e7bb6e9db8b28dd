"""The parts of parameters whose views divide them: each part is stepped as a parameter of its own would be."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from orthoptim.base import Kind, per_matrix
from orthoptim.views import View

T = TypeVar("T")


class Division:
    """Parameters taken apart: tensors with an entry for each parameter become tensors with an entry for each part.

    Args:
        params: the parameters.
        views: the views that divide them; none, where these do not: then all stays as it is.
        side: which side is orthonormal.
    """

    def __init__(self, params: Sequence[Tensor], views: Sequence[View], side: str) -> None:
        divided = params if views else ()
        self._parts = [view.parts(param.shape, side) for view, param in zip(views, divided, strict=True)]

    def entries(self, tensors: list[Tensor]) -> list[Tensor]:
        """Tensors of the shapes of the parameters, taken apart: views of their memory."""
        if not self._parts:
            return tensors
        return [part.entries(tensor) for tensor, parts in zip(tensors, self._parts, strict=True) for part in parts]

    def state(self, name: str, tensors: list[Tensor], kinds: Mapping[str, Kind]) -> list[Tensor]:
        """State tensors, taken apart: of the shapes of the parameters, or with a value for each of their matrices."""
        if not self._parts or name not in kinds or not per_matrix(kinds[name]):
            return self.entries(tensors)
        return [part.values(tensor) for tensor, parts in zip(tensors, self._parts, strict=True) for part in parts]

    def owners(self, items: Sequence[T]) -> list[T]:
        """For each part, what belongs to its parameter."""
        if not self._parts:
            return list(items)
        return [item for item, parts in zip(items, self._parts, strict=True) for _ in parts]

    def firsts(self, items: Sequence[T]) -> list[T | None]:
        """What belongs to a parameter at the first of its parts; None at the others."""
        if not self._parts:
            return list(items)
        return [
            item if i == 0 else None for item, parts in zip(items, self._parts, strict=True) for i in range(len(parts))
        ]
