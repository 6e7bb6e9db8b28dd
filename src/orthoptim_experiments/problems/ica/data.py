"""Real signals, whitened: handwritten digits, and mixtures of the photographs that come with scikit-learn."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.problems.datasets import load


class Mixture(NamedTuple):
    """Whitened signals Z (n, T) with ZZᵀ = T·I, how they were made of sources (Z = AS; None: nobody knows), a start."""

    z: Tensor
    mixing: Tensor | None
    start: Tensor


@lru_cache(maxsize=1)
def mixture(variant: str, n: int, side: int, seed: int) -> Mixture:
    """The data of one seed.

    ``pictures``: n crops of the two photographs of scikit-learn, in one colour each, filtered by a difference along the
    rows (which commutes with mixing, and makes signals sparse), mixed by a Gaussian matrix. ``digits``: the n leading
    principal components of handwritten digits.
    """
    generator = torch.Generator().manual_seed(seed)
    mixing: Tensor | None = None
    if variant == "pictures":
        sources = _crops(n, side, generator)
        mixing = torch.randn(n, n, dtype=torch.float64, generator=generator)
        signals = mixing @ sources
    else:
        signals = _digits()
    signals = signals - signals.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(signals @ signals.T / signals.shape[1])
    whitening = values[-n:, None].rsqrt() * vectors[:, -n:].T
    start = oo.orthogonalize_(torch.empty(n, n, dtype=torch.float64), init="random", generator=generator)
    return Mixture(whitening @ signals, None if mixing is None else whitening @ mixing, start)


def _crops(n: int, side: int, generator: torch.Generator) -> Tensor:
    """Sources of unit variance: places are drawn until no two crops of a picture overlap."""
    from sklearn.datasets import load_sample_images

    pictures = [torch.as_tensor(image.copy()).double() for image in load_sample_images().images]
    cells = [
        (picture, row, column)
        for picture in range(len(pictures))
        for row in range(pictures[picture].shape[0] // side)
        for column in range((pictures[picture].shape[1] - 1) // side)
    ]
    chosen = torch.randperm(len(cells), generator=generator)[:n].tolist()
    sources = []
    for place, index in enumerate(chosen):
        picture, row, column = cells[index]
        patch = pictures[picture][row * side : (row + 1) * side, column * side : (column + 1) * side + 1, place % 3]
        source = patch.diff(dim=1).flatten()
        sources.append((source - source.mean()) / source.std())
    return torch.stack(sources)


def _digits() -> Tensor:
    digits = load("digits8")
    return torch.cat([digits.train.pixels, digits.test.pixels]).double().flatten(1).T


def amari(gain: Tensor) -> float:
    """Amari's distance of WA from a scaled permutation: 0 for one, at most 1.

    Example:
        >>> amari(torch.tensor([[0.0, 2.0], [-3.0, 0.0]])), amari(torch.ones(2, 2))
        (0.0, 1.0)
    """
    gain = gain.abs()
    rows = (gain.sum(1) / gain.amax(1) - 1).sum()
    columns = (gain.sum(0) / gain.amax(0) - 1).sum()
    n = len(gain)
    return float(rows + columns) / (2 * n * (n - 1))
