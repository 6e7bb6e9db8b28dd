"""Pictures of what a circuit has learnt: samples, and images completed from their upper half."""

import io

import torch
from PIL import Image
from torch import Tensor

from orthoptim_experiments.problems.circuits.model import SquaredUnitaryCircuit
from orthoptim_experiments.problems.circuits.sampling import inpaint, sample

ROWS, COLUMNS = 6, 16
COMPLETIONS = 4
SIZE = 48
"""Pixels of the page that an image is wide, at least."""


def draw_samples(circuit: SquaredUnitaryCircuit, generator: torch.Generator) -> bytes:
    """A grid of independent samples, as a PNG file."""
    samples = sample(circuit, ROWS * COLUMNS, generator=generator)
    return grid(samples.view(ROWS, COLUMNS, *samples.shape[1:]), circuit.states)


def draw_inpaintings(circuit: SquaredUnitaryCircuit, images: Tensor, generator: torch.Generator) -> bytes:
    """Images in the first row, their upper halves in the second, and independent completions below, as a PNG file."""
    images = images[:COLUMNS].to(torch.int64)
    seen = torch.arange(circuit.height)[:, None].expand(circuit.height, circuit.width) < circuit.height // 2
    completed = inpaint(circuit, images.repeat(COMPLETIONS, 1, 1), seen, generator=generator)
    halves = torch.where(seen, images, circuit.states // 3)
    rows = torch.cat([images[None], halves[None], completed.view(COMPLETIONS, *images.shape)])
    return grid(rows, circuit.states)


def grid(images: Tensor, states: int) -> bytes:
    """Images (rows, columns, height, width) with values below ``states`` side by side, as a PNG file.

    Example:
        >>> grid(torch.zeros(2, 3, 8, 8, dtype=torch.int64), states=17)[1:4]
        b'PNG'
    """
    grey = (images * (255 / (states - 1))).round().to(torch.uint8)
    times = -(-SIZE // grey.shape[-1])
    large = grey.repeat_interleave(times, -2).repeat_interleave(times, -1)
    framed = torch.nn.functional.pad(large, (2, 2, 2, 2), value=128)
    sheet = framed.transpose(1, 2).flatten(2).flatten(0, 1)
    buffer = io.BytesIO()
    Image.fromarray(sheet.cpu().numpy()).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
