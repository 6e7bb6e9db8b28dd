"""Batches of images that are tensors on the training device already."""

from typing import Any

import torch
from torch import Tensor

from orthoptim_experiments.problems.datasets.augment import crop, flip, normalize
from orthoptim_experiments.problems.datasets.draws import generator
from orthoptim_experiments.problems.datasets.images import Images


class BatchLoader:
    """Endless shuffled batches; an epoch drops what does not fill its last batch.

    Order and augmentation of an epoch are a function of the seed and of its number. So the state is three numbers, and
    a run that is resumed in the middle of an epoch sees the same batches as one that never stopped.

    Args:
        images: where they are is where they are augmented and returned.
        batch_size: images of a batch.
        mean: of each channel, to normalise by.
        std: of each channel.
        alternate_flips: mirror a random half of the images in epoch 0, the other half in epoch 1, and so on: in two
            epochs an image is seen from both sides, which random flips only do half of the time.
        pad: pad by so many pixels, by reflection, and cut at random.
        seed: of all draws.
        part: which images of each batch are returned, where others take the rest; by default all.

    Example:
        >>> from orthoptim_experiments.problems.datasets import load
        >>> digits = load("digits")
        >>> loader = BatchLoader(digits.train, 500, digits.mean, digits.std, pad=2)
        >>> images, labels = loader.next()
        >>> images.shape, loader.steps_per_epoch
        (torch.Size([500, 3, 32, 32]), 3)
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        alternate_flips: bool = False,
        pad: int = 0,
        seed: int = 0,
        part: slice = slice(None),
    ) -> None:
        count = len(images.labels)
        if not 0 < batch_size <= count:
            raise ValueError(f"a batch of {batch_size} cannot be taken from {count} images")
        self.images = images
        self.batch_size, self.part = batch_size, part
        self.mean, self.std = mean, std
        self.alternate_flips, self.pad = alternate_flips, pad
        self.steps_per_epoch = count // batch_size
        self._move_to(seed, epoch=0, batch=0)

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch: normalised, augmented images and their labels."""
        chosen = self._choose()
        images = normalize(self.images.pixels[chosen], self.mean, self.std)
        if self.alternate_flips:
            images = flip(images, self._mirrored[chosen])
        if self.pad:
            images = crop(images, self.pad, self._offsets[chosen])
        return images, self.images.labels[chosen]

    def next_bytes(self) -> Tensor:
        """The next batch as it was stored, for models of the bytes themselves."""
        return self.images.pixels[self._choose()]

    def state_dict(self) -> dict[str, Any]:
        """The position of the loader."""
        return {"seed": self.seed, "epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        self._move_to(state["seed"], state["epoch"], state["batch"])

    def _choose(self) -> Tensor:
        if self.batch == self.steps_per_epoch:
            self._move_to(self.seed, self.epoch + 1, batch=0)
        chosen = self._order[self.batch * self.batch_size : (self.batch + 1) * self.batch_size]
        self.batch += 1
        return chosen[self.part]

    def _move_to(self, seed: int, epoch: int, batch: int) -> None:
        self.seed, self.epoch, self.batch = seed, epoch, batch
        count, device = len(self.images.labels), self.images.labels.device
        self._order = torch.randperm(count, generator=generator(seed, "order", epoch)).to(device)
        if self.alternate_flips:
            first = torch.rand(count, generator=generator(seed, "flip")) < 0.5
            self._mirrored = (first ^ bool(epoch % 2)).to(device)
        if self.pad:
            shape = (count, 2)
            offsets = torch.randint(2 * self.pad + 1, shape, generator=generator(seed, "crop", epoch))
            self._offsets = offsets.to(device)
