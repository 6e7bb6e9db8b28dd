"""Ranks that train together hold the same bits; here it is seen that they do."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim_experiments.harness import ranks


class ReplicasError(RuntimeError):
    """The ranks have trained different models."""


def common_digest(state: Mapping[str, Any]) -> str:
    """The digest of a state that all ranks have; for one process alone, which has nobody to agree with, empty.

    Raises:
        ReplicasError: if they have not.
    """
    if ranks.world_size() == 1:
        return ""
    found = digest(state)
    if not ranks.agree(found):
        raise ReplicasError("the processes have come to different models; give each the same number of threads")
    return found


def digest(state: Mapping[str, Any]) -> str:
    """Sixteen digits that stand for every bit of the tensors in a state, and for nothing else in it.

    Example:
        >>> digest({"model": {"w": torch.zeros(2)}}) == digest({"time": 0.3, "model": [torch.zeros(2)]})
        True
        >>> digest({"w": torch.zeros(2)}) == digest({"w": -torch.zeros(2)})
        False
    """
    found = hashlib.sha256()
    for tensor in _tensors(state):
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _tensors(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
