"""Text that ships with Python: the language reference and library topics of ``help()``, as bytes."""

import pydoc_data.topics
from typing import NamedTuple

import torch
from torch import Tensor

SYMBOLS = 128
"""Bytes beyond are written as the last one."""


def corpus() -> Tensor:
    """All of it, about 700 000 symbols."""
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return data.clamp_max(SYMBOLS - 1).long()


class Texts(NamedTuple):
    """To train the model on, to learn rotations on, to choose learning rates by, and to report."""

    train: Tensor
    calibration: Tensor
    validation: Tensor
    test: Tensor


def split(data: Tensor) -> Texts:
    """The first 85 %, and three twentieths, in this order."""
    return Texts(*data.tensor_split([int(part * len(data)) for part in (0.85, 0.9, 0.95)]))


def batch(data: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Windows of ``length + 1`` symbols from random places, (count, length + 1)."""
    starts = torch.randint(0, len(data) - length - 1, (count, 1), generator=generator)
    return data[starts + torch.arange(length + 1)]


def windows(data: Tensor, count: int, length: int) -> Tensor:
    """As many, evenly spread."""
    starts = torch.linspace(0, len(data) - length - 2, count).long()[:, None]
    return data[starts + torch.arange(length + 1)]
