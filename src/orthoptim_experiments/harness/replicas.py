"""Checks that all ranks hold the same bits."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim_experiments.harness import ranks


class ReplicasError(RuntimeError):
    """The ranks have trained different models."""


def common_digest(state: Mapping[str, Any]) -> str:
    """The digest of a state that all ranks share; empty for a single process.

    Raises:
        ReplicasError: if the states of the ranks differ.
    """
    if ranks.world_size() == 1:
        return ""
    text = digest(state)
    if not ranks.all_equal(text):
        raise ReplicasError("the processes have come to different models; give each the same number of threads")
    return text


def digest(state: Mapping[str, Any]) -> str:
    """Sixteen digits that stand for every bit of the tensors in a state, and for nothing else in it.

    Example:
        >>> digest({"model": {"w": torch.zeros(2)}}) == digest({"time": 0.3, "model": [torch.zeros(2)]})
        True
        >>> digest({"w": torch.zeros(2)}) == digest({"w": -torch.zeros(2)})
        False
    """
    sha256 = hashlib.sha256()
    for tensor in _tensors(state):
        sha256.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()[:16]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _tensors(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
