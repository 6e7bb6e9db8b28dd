"""A transformer with RMSNorm, whose residual stream and values can be rotated, and its products in four bits.

RMSNorm without weights commutes with rotations of the residual stream, h ↦ hR₁, and attention with rotations of the
values of each head, v ↦ vR₂. So weights that read the stream become WR₁, weights that write to it R₁ᵀW, and nothing
changes, but for rounding: of weights to 4 bits for each output, and of activations to 4 bits for each token.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from orthoptim_experiments.problems.rotations.text import SYMBOLS


class Sizes(NamedTuple):
    """Width of the residual stream, layers, heads, width inside of the MLP."""

    width: int
    layers: int
    heads: int
    hidden: int


class Rotations(NamedTuple):
    """R₁ (d×d) of the residual stream, and R₂ (layers, heads, d/heads, d/heads) of the values."""

    stream: Tensor
    values: Tensor


class Layer(nn.Module):
    """Weights of one layer, as (out, in)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, hidden = sizes.width, sizes.hidden
        for name, shape in {
            "query": (width, width),
            "key": (width, width),
            "value": (width, width),
            "output": (width, width),
            "gate": (hidden, width),
            "up": (hidden, width),
            "down": (width, hidden),
        }.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) / shape[1] ** 0.5))


class LanguageModel(nn.Module):
    """Predicts the next symbol.

    Args:
        sizes: its sizes.
        length: the longest window.
    """

    def __init__(self, sizes: Sizes, length: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Parameter(torch.randn(SYMBOLS, sizes.width))
        self.position = nn.Parameter(0.1 * torch.randn(length, sizes.width))
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.head = nn.Parameter(torch.randn(SYMBOLS, sizes.width) / sizes.width**0.5)

    def forward(self, symbols: Tensor, rotations: Rotations | None = None, bits: int | None = None) -> Tensor:
        """Logits (batch, length, SYMBOLS).

        Args:
            symbols: (batch, length).
            rotations: of stream and values; ``None``: none.
            bits: those of weights and activations of the layers; ``None``: not quantized.
        """

        def product(x: Tensor, weight: Tensor) -> Tensor:
            if bits is not None:
                x, weight = quantize(x, bits), quantize(weight, bits)
            return x @ weight.mT

        h = self.embedding[symbols] + self.position[: symbols.shape[1]]
        stream = None if rotations is None else rotations.stream
        h = h if stream is None else h @ stream
        for index, layer in enumerate(self.layers):
            w: dict[str, Tensor] = dict(layer.named_parameters())
            if rotations is not None and stream is not None:
                w = rotated(w, stream, rotations.values[index])
            x = normalize(h)
            q, k, v = (self._heads(product(x, w[name])) for name in ("query", "key", "value"))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + product(mixed.transpose(1, 2).flatten(2), w["output"])
            x = normalize(h)
            inside = functional.silu(product(x, w["gate"])) * product(x, w["up"])
            h = h + product(inside, w["down"])
        head = self.head if stream is None else self.head @ stream
        return normalize(h) @ head.mT

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.sizes.heads, -1).transpose(1, 2)


def rotated(w: dict[str, Tensor], stream: Tensor, values: Tensor) -> dict[str, Tensor]:
    """The weights of a layer for a rotated stream, and rotated values (heads, k, k)."""
    heads, width = values.shape[0], stream.shape[0]
    value = values.mT @ w["value"].reshape(heads, -1, width)
    output = (w["output"].reshape(width, heads, -1).transpose(0, 1) @ values).transpose(0, 1).flatten(1)
    return {
        **{name: w[name] @ stream for name in ("query", "key", "gate", "up")},
        "value": value.flatten(0, 1) @ stream,
        "output": stream.mT @ output,
        "down": stream.mT @ w["down"],
    }


def normalize(x: Tensor) -> Tensor:
    """RMSNorm without weights."""
    return functional.rms_norm(x, x.shape[-1:])


def quantize(x: Tensor, bits: int) -> Tensor:
    """Rows rounded to 2^bits − 1 levels between ± their largest entry; rounding has the gradient of the identity."""
    largest = 2 ** (bits - 1) - 1
    step = x.abs().amax(-1, keepdim=True).clamp_min(1e-8) / largest
    scaled = x / step
    rounded: Tensor = (scaled + (scaled.round() - scaled).detach()) * step
    return rounded


def loss(logits: Tensor, symbols: Tensor) -> Tensor:
    """Cross-entropy of the next symbols, in nats."""
    return functional.cross_entropy(logits.flatten(0, 1), symbols.flatten())
