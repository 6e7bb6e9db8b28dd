"""Data sets by name: CIFAR-10, MNIST, and the small one that is part of this package."""

import functools
import gzip
import struct
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from orthoptim_experiments.problems.datasets.files import DataError, data_directory, read
from orthoptim_experiments.problems.datasets.images import Dataset, Images
from orthoptim_experiments.problems.datasets.sources import CIFAR10, MNIST

_SPLIT = 1500  # of the 1797 digits


def load(name: str, directory: Path | None = None) -> Dataset:
    """Load a data set.

    Args:
        name: ``"cifar10"``, ``"mnist"``, or one of the embedded: ``"digits"``, which look like CIFAR-10, and
            ``"digits8"``, the same digits as they are, 8×8 in 17 shades.
        directory: the data directory, see :func:`data_directory`.

    Raises:
        DataError: if its files are missing or damaged, or there is no such data set.

    Example:
        >>> digits = load("digits")
        >>> digits.train.pixels.shape, digits.test.pixels.dtype
        (torch.Size([1500, 3, 32, 32]), torch.uint8)
    """
    if name not in READERS:
        raise DataError(f"unknown data set {name!r}; there are {', '.join(READERS)}")
    return _load(name, data_directory(directory))


@functools.lru_cache(maxsize=1)  # a run asks for the same images in every trial
def _load(name: str, directory: Path) -> Dataset:
    return READERS[name](directory)


def _cifar10(directory: Path) -> Dataset:
    parts = [_records(read(CIFAR10, name, directory), 3, 32) for name in CIFAR10.files]
    train = Images(*(torch.cat(columns) for columns in zip(*parts[:-1], strict=True)))
    return Dataset("cifar10", train, parts[-1], mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def _mnist(directory: Path) -> Dataset:
    def images(pixels: str, labels: str) -> Images:
        return Images(_idx(read(MNIST, pixels, directory)).unsqueeze(1), _idx(read(MNIST, labels, directory)).long())

    files = list(MNIST.files)
    return Dataset("mnist", images(*files[:2]), images(*files[2:]), mean=(0.1307,), std=(0.3081,))


def _digits(directory: Path) -> Dataset:
    """scikit-learn's 8×8 digits, enlarged in three ways to the three channels of 32×32 that a net for CIFAR-10 takes.

    Equal channels would leave most filters of a whitening layer without a signal, and batch normalisation would blow
    up their rounding errors.
    """
    small, labels = _small_digits()
    ways = ("nearest", "bilinear", "bicubic")
    large = torch.cat([functional.interpolate(small * (255 / 16), size=(32, 32), mode=way) for way in ways], dim=1)
    train, test = _split(Images(large.round().clamp(0, 255).to(torch.uint8), labels))
    return Dataset("digits", train, test, mean=(0.3052, 0.3051, 0.3120), std=(0.3749, 0.3222, 0.3549))


def _digits8(directory: Path) -> Dataset:
    """scikit-learn's 8×8 digits as they are: values from 0 to 16."""
    train, test = _split(_small_digits())
    return Dataset("digits8", train, test, mean=(0.0191,), std=(0.0235,))


def _small_digits() -> Images:
    packed = resources.files(__package__).joinpath("digits.bin.gz").read_bytes()
    return _records(bytearray(gzip.decompress(packed)), 1, 8)


def _split(images: Images) -> tuple[Images, Images]:
    return images.first(_SPLIT), Images(images.pixels[_SPLIT:], images.labels[_SPLIT:])


READERS = {"cifar10": _cifar10, "mnist": _mnist, "digits": _digits, "digits8": _digits8}


def _records(content: bytearray, channels: int, side: int) -> Images:
    """Records of CIFAR's binary format: one byte of label, then the pixels, channel by channel."""
    records = torch.frombuffer(content, dtype=torch.uint8).view(-1, 1 + channels * side * side)
    return Images(records[:, 1:].reshape(-1, channels, side, side), records[:, 0].long())


def _idx(content: bytearray) -> Tensor:
    """An array of bytes in the idx format: two zeros, the type, the rank, the sizes, the entries."""
    rank = content[3]
    shape = struct.unpack_from(f">{rank}I", content, 4)
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * rank).view(shape)
