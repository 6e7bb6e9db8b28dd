"""Where parameters stand in the param groups of another optimizer, and what has taken their place."""

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor

Groups = Sequence[Mapping[str, Any]]


class Positions:
    """The positions of some parameters in param groups.

    Something may put other tensors there: ``accelerate`` does, when it shards a model. Whoever steps the parameters by
    means of these groups has to notice.

    Args:
        groups: the param groups.
        params: parameters that are all among theirs.
    """

    def __init__(self, groups: Groups, params: Sequence[Tensor]) -> None:
        at = {id(tensor): i for i, tensor in enumerate(_tensors(groups))}
        self._places = [at[id(param)] for param in params]
        self._sizes = _sizes(groups)

    def unchanged(self, groups: Groups, params: Sequence[Tensor]) -> bool:
        """Whether the groups hold the parameters where they did; microseconds for a thousand."""
        tensors = _tensors(groups)
        return _sizes(groups) == self._sizes and all(map(is_, map(tensors.__getitem__, self._places), params))

    def find(self, groups: Groups, params: Sequence[Tensor]) -> list[Tensor | None]:
        """For each parameter itself, if the groups still hold it anywhere; else the tensor in its place.

        None, if parameters were taken out of the groups, so that its place is not known.
        """
        tensors = _tensors(groups)
        here = {id(tensor) for tensor in tensors}
        present = {id(param) for param in params} & here
        known = _sizes(groups)[: len(self._sizes)] == self._sizes  # groups may be added at the end
        found: list[Tensor | None] = []
        for param, place in zip(params, self._places, strict=True):
            if id(param) in here:
                found.append(param)
            else:
                found.append(tensors[place] if known and id(tensors[place]) not in present else None)
        return found


def _tensors(groups: Groups) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in groups))


def _sizes(groups: Groups) -> list[int]:
    return [len(group["params"]) for group in groups]
