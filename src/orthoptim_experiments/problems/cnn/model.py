"""The convolutional network of the CIFAR-10 speed runs (airbench), whose 3×3 convolutions can be orthogonal.

K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from orthoptim_experiments.problems.cnn.batch_norm import BatchNorm2d

WHITENING_IMAGES = 5000
CLASSES = 10


class ConvNet(nn.Module):
    """Whitening, three groups of two convolutions, a linear head; logits are divided by the number of features.

    Args:
        widths: channels of the three groups; (64, 256, 256) in the paper.
        channels: of the images.

    Example:
        >>> net = ConvNet(widths=(8, 16, 16))
        >>> net.whiten_by_(torch.randn(64, 3, 32, 32))
        >>> net(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, widths: tuple[int, int, int] = (64, 256, 256), channels: int = 3) -> None:
        super().__init__()
        whitened = 2 * channels * 2**2
        self.whiten = nn.Conv2d(channels, whitened, kernel_size=2)
        self.whiten.weight.requires_grad_(False)
        first, second, third = widths
        self.groups = nn.Sequential(
            ConvGroup(whitened, first), ConvGroup(first, second), ConvGroup(second, third), nn.MaxPool2d(3)
        )
        self.head = nn.Linear(third, CLASSES, bias=False)
        with torch.no_grad():
            self.head.weight /= self.head.weight.std()

    @torch.no_grad()
    def whiten_by_(self, images: Tensor, eps: float = 5e-4) -> None:
        """Set the first layer to the whitening filters of 2×2 patches of normalised images, and their negatives.

        Filters are eigenvectors of the patches' second moments, over √(eigenvalue + eps).
        """
        moments, count = torch.zeros((), dtype=torch.float64, device=images.device), 0
        for part in torch.split(images.double(), 500):
            patches = functional.unfold(part, kernel_size=2).transpose(1, 2).flatten(0, 1)
            moments = moments + patches.T @ patches
            count += len(patches)
        values, vectors = torch.linalg.eigh(moments / count)
        filters = (vectors / (values + eps).sqrt()).T.reshape(-1, *self.whiten.weight.shape[1:])
        self.whiten.weight.copy_(torch.cat((filters, -filters)))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of normalised images."""
        # Features take the layout of the images; pooling and convolutions on a CPU are a fifth faster in this one.
        images = images.contiguous(memory_format=torch.channels_last)
        features = self.groups(functional.gelu(self.whiten(images))).flatten(1)
        logits: Tensor = self.head(features) / features.shape[1]
        return logits


class ConvGroup(nn.Module):
    """Convolution, pooling, normalisation, GELU; convolution, normalisation, GELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(inputs, outputs), _normalisation(outputs)
        self.conv2, self.norm2 = _convolution(outputs, outputs), _normalisation(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The features of half the height and width."""
        x = functional.gelu(self.norm1(functional.max_pool2d(self.conv1(x), 2)))
        return functional.gelu(self.norm2(self.conv2(x)))


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """3×3, of the same size, without bias; as many filters as there are inputs start as the identity."""
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding="same", bias=False)
    nn.init.dirac_(conv.weight.data[:inputs])
    return conv


def _normalisation(channels: int) -> BatchNorm2d:
    """Batch normalisation with a bias alone. The momentum is torch's: the weight of the new statistics."""
    norm = BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm
