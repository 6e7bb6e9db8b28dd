"""Augmentation of whole batches, on the device they are on."""

import torch
from torch import Tensor
from torch.nn import functional


def normalize(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes to float32 of mean 0 and deviation 1, channel by channel.

    Example:
        >>> normalize(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8), (0.5,), (0.25,)).unique()
        tensor([2.])
    """
    shift = torch.tensor(mean, device=pixels.device).view(-1, 1, 1)
    scale = torch.tensor(std, device=pixels.device).view(-1, 1, 1)
    return (pixels / 255 - shift) / scale


def flip(images: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror left and right the images that a mask (N,) names."""
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)


def crop(images: Tensor, pad: int, offsets: Tensor) -> Tensor:
    """Pad images by reflection and cut each to its former size.

    Args:
        images: (N, C, H, W).
        pad: pixels on each side.
        offsets: row and column of the upper left corner in the padded image, (N, 2), each from 0 to 2·pad; at ``pad``
            the image stays as it is.
    """
    height, width = images.shape[-2:]
    padded = functional.pad(images, (pad,) * 4, mode="reflect")
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: (N, C, row, column, H, W)
    rows, columns = offsets.unbind(1)
    return windows[torch.arange(len(images), device=images.device), :, rows, columns]
