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
    """To train a model on, to learn rotations on, and to report."""

    train: Tensor
    calibration: Tensor
    test: Tensor


def split(data: Tensor, validation: bool = False) -> Texts:
    """Training, calibration and test text: nine tenths, a twentieth and a twentieth, in this order.

    For validation, where hyperparameters are chosen, the second half of the calibration text is held out, and takes the
    place of the test text.
    """
    train, calibration = int(0.9 * len(data)), int(0.95 * len(data))
    if validation:
        middle = (train + calibration) // 2
        return Texts(data[:train], data[train:middle], data[middle:calibration])
    return Texts(data[:train], data[train:calibration], data[calibration:])


def batch(data: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Windows of ``length + 1`` symbols from random places, (count, length + 1)."""
    starts = torch.randint(0, len(data) - length - 1, (count, 1), generator=generator)
    return data[starts + torch.arange(length + 1)]


def windows(data: Tensor, count: int, length: int) -> Tensor:
    """As many, evenly spread."""
    starts = torch.linspace(0, len(data) - length - 2, count).long()[:, None]
    return data[starts + torch.arange(length + 1)]
