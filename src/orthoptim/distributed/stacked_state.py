"""What a rank holds of the state of a bucket: for each buffer one tensor, of which those of the parameters are parts.

So a step reads and writes each buffer of a bucket at once, however many parameters there are. A state that is loaded,
or replaced by hand, is taken in again.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from orthoptim.base import Kind
from orthoptim.distributed.sharded_buckets import ShardedBucket
from orthoptim.distributed.sharded_state import init_state, local_values
from orthoptim.distributed.torch_dtensor import from_local
from orthoptim.tensors import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class StackedState:
    """The state of one bucket.

    Args:
        pieces: the bucket.
        params: its parameters.
    """

    def __init__(self, pieces: ShardedBucket, params: list[DTensor]) -> None:
        self._pieces = pieces
        self._params = params
        self._known: list[Tensor] = []
        self._stacks: dict[str, Tensor] = {}

    def __call__(
        self, states: MutableMapping[Tensor, Any], kinds: Mapping[str, Kind], group: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """The buffers by name: (members, ...) of the local shape of each."""
        now = self._values(states)
        if not self._stacks or len(now) != len(self._known) or not all(map(is_, now, self._known)):
            self._adopt(states, kinds, group)
        return self._stacks

    def _values(self, states: MutableMapping[Tensor, Any]) -> list[Tensor]:
        return [value for param in self._params for value in states[param].values()]

    def _adopt(self, states: MutableMapping[Tensor, Any], kinds: Mapping[str, Kind], group: Mapping[str, Any]) -> None:
        for param in self._params:
            init_state(param, kinds, group, states[param])
        self._stacks = {}
        for name in ("step", *(("master",) if self._pieces.half else ()), *kinds):
            sources = [states[param][name] for param in self._params]
            if len(sources) == 1:
                self._stacks[name] = local_values(sources[0]).unsqueeze(0)
                continue
            self._stacks[name] = torch.stack([local_values(source) for source in sources])
            for param, source, part in zip(self._params, sources, self._stacks[name].unbind(0), strict=True):
                states[param][name] = _placed_like(part, source)
        self._known = self._values(states)


def _placed_like(local: Tensor, source: Tensor) -> Tensor:
    if not is_dtensor(source):
        return local
    return from_local(
        local,
        source.device_mesh,
        source.placements,
        shape=source.shape,
        stride=source.stride(),
    )
