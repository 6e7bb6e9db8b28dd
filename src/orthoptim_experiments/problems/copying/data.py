"""Sequences: ten symbols to be copied after a long time, and digits whose pixels come one by one in a random order."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from orthoptim_experiments.harness.experiment import Config
from orthoptim_experiments.problems.datasets import Images, derive_seed, load

SYMBOLS, COPIED = 8, 10
BLANK, MARKER = SYMBOLS, SYMBOLS + 1


class Sequences(NamedTuple):
    """Inputs (time, batch, inputs); targets (steps, batch) of the last ``steps`` outputs."""

    inputs: Tensor
    targets: Tensor


class Copying:
    """Ten symbols of eight, ``delay`` − 1 blanks, a marker, and ten blanks, over which the symbols are to be repeated.

    Before that the answer is a blank. Who remembers nothing has a loss of 10 log 8 / (delay + 20), the mean over all
    outputs: :attr:`baseline`.
    """

    inputs, outputs = SYMBOLS + 2, SYMBOLS + 1

    def __init__(self, config: Config) -> None:
        self.delay, self.config = config["delay"], config
        self.baseline = COPIED * math.log(SYMBOLS) / (self.delay + 2 * COPIED)

    def batch(self, generator: torch.Generator) -> Sequences:
        """Drawn anew."""
        return self._draw(self.config["batch"], generator)

    def held_out(self) -> Sequences:
        """The same for every method and seed; others in a sweep."""
        name = "validation" if self.config.get("validation") else "test"
        return self._draw(self.config["test_batch"], torch.Generator().manual_seed(derive_seed(0, name, 0)))

    def recalled(self, logits: Tensor, targets: Tensor) -> float:
        """The share of the ten symbols that are right."""
        return float((logits[-COPIED:].argmax(-1) == targets[-COPIED:]).double().mean())

    def _draw(self, count: int, generator: torch.Generator) -> Sequences:
        symbols = torch.randint(SYMBOLS, (COPIED, count), generator=generator)
        blanks = torch.full((self.delay + COPIED, count), BLANK)
        inputs = torch.cat((symbols, blanks))
        inputs[self.delay + COPIED - 1] = MARKER
        return Sequences(functional.one_hot(inputs, self.inputs).float(), torch.cat((blanks, symbols)))


class PermutedDigits:
    """The pixels of a digit, one at a time, in an order that is random and the same for all; its class at the end."""

    inputs, outputs = 1, 10
    baseline = math.log(10)

    def __init__(self, config: Config) -> None:
        data, self.config = load(config["images"]), config
        pixels = data.train.pixels[0].numel()
        self.order = torch.randperm(pixels, generator=torch.Generator().manual_seed(0))
        held_out = len(data.train.labels) // 10 if config.get("validation") else 0
        count = len(data.train.labels) - held_out
        self.scale = float(data.train.pixels.max())
        self.train = data.train.first(count)
        self.test = Images(data.train.pixels[count:], data.train.labels[count:]) if held_out else data.test

    def batch(self, generator: torch.Generator) -> Sequences:
        """Digits of the training set, drawn with replacement."""
        return self._sequences(
            self.train, torch.randint(len(self.train.labels), (self.config["batch"],), generator=generator)
        )

    def held_out(self) -> Sequences:
        """The test set; in a sweep the last tenth of the training set, which is then not trained on."""
        return self._sequences(self.test, torch.arange(len(self.test.labels)))

    def recalled(self, logits: Tensor, targets: Tensor) -> float:
        """Accuracy."""
        return float((logits[-1].argmax(-1) == targets[-1]).double().mean())

    def _sequences(self, images: Images, chosen: Tensor) -> Sequences:
        pixels = images.pixels[chosen].flatten(1)[:, self.order].mT / self.scale
        return Sequences(pixels[..., None], images.labels[chosen][None])


PROBLEMS: dict[str, type[Copying | PermutedDigits]] = {"copying": Copying, "digits": PermutedDigits}
