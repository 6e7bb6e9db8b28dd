"""Data sets in memory: images and labels as tensors."""

from typing import NamedTuple

import torch
from torch import Tensor


class Images(NamedTuple):
    """Labelled images.

    Attributes:
        pixels: bytes (N, channels, height, width).
        labels: classes (N,), int64.
    """

    pixels: Tensor
    labels: Tensor

    def to(self, device: torch.device | str) -> "Images":
        """The same images on a device."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def first(self, count: int) -> "Images":
        """The first images, or all of them if there are fewer."""
        return Images(self.pixels[:count], self.labels[:count])


class Dataset(NamedTuple):
    """A data set.

    Attributes:
        name: as the command line calls it.
        train: images to train on.
        test: images to test on.
        mean: of each channel of the training images, in units of 1 for white.
        std: standard deviation of each channel.
    """

    name: str
    train: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]
