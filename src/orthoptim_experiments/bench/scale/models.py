"""The models of the study: transformers whose attention and MLP matrices are all orthogonal, sharded over ranks."""

from functools import cache
from typing import NamedTuple

import torch

from orthoptim.distributed.placements import long_dim_placement

Shape = tuple[int, ...]


class Model(NamedTuple):
    """A transformer, as far as its matrices go.

    Attributes:
        title: whose shapes they are.
        layers: how many.
        width: of the residual stream, d.
        keys: the width of keys, and of values: less than d where heads share them.
        hidden: the width of the MLP.
        gated: whether that has a third matrix, as SwiGLU has.
        rank: of adapters, which are then orthogonal in the place of the weights; else none.
    """

    title: str
    layers: int
    width: int
    keys: int
    hidden: int
    gated: bool
    rank: int | None = None

    def layer(self) -> list[Shape]:
        """The weights of one layer, in torch's order (out, in): queries, keys, values, output, MLP.

        Example:
            >>> MODELS["0.1B"].layer()
            [(768, 768), (768, 768), (768, 768), (768, 768), (3072, 768), (768, 3072)]
        """
        d = self.width
        weights: list[Shape] = [(d, d), (self.keys, d), (self.keys, d), (d, d)]
        weights += [*[(self.hidden, d)] * (1 + self.gated), (d, self.hidden)]
        if self.rank is None:
            return weights
        return [factor for out, into in weights for factor in ((self.rank, into), (out, self.rank))]

    @property
    def entries(self) -> int:
        """The number of parameters that are made orthogonal."""
        return self.layers * sum(map(numel, self.layer()))


MODELS: dict[str, Model] = {
    "0.1B": Model("GPT-2 small", 12, 768, 768, 3072, gated=False),
    "7B": Model("Llama 2 7B", 32, 4096, 4096, 11008, gated=True),
    "70B": Model("Llama 2 70B", 80, 8192, 1024, 28672, gated=True),
    "adapters": Model("adapters of rank 64 of Llama 2 7B", 32, 4096, 4096, 11008, gated=True, rank=64),
}

PLACEMENTS = ("first dim", "long dim")
"""FSDP2's own choice, and that of :func:`orthoptim.distributed.placements.long_dim_placement`."""


class Case(NamedTuple):
    """Weights, and how they are cut.

    Attributes:
        layer: the weights of one layer.
        layers: how many there are.
        placement: one of PLACEMENTS.
        world: the number of ranks.
    """

    layer: list[Shape]
    layers: int
    placement: str
    world: int

    def dim(self, shape: Shape) -> int:
        """The dim of a weight that is cut."""
        return 0 if self.placement == "first dim" else _long_dim(shape, self.world)

    def local(self, shape: Shape, rank: int) -> Shape:
        """The shape of a rank's shard of a weight, as :func:`torch.chunk` cuts: the last may be smaller, or empty.

        Example:
            >>> [Case([], 1, "first dim", 4).local((5, 8), rank) for rank in range(4)]
            [(2, 8), (2, 8), (1, 8), (0, 8)]
        """
        dim = self.dim(shape)
        chunk = -(-shape[dim] // self.world)
        local_size = min(chunk, max(0, shape[dim] - rank * chunk))
        return (*shape[:dim], local_size, *shape[dim + 1 :])

    def held(self, rank: int) -> int:
        """The entries on a rank."""
        return self.layers * sum(numel(self.local(shape, rank)) for shape in self.layer)

    def cuts_short(self, shape: Shape) -> bool:
        """Whether the shorter side of the matrix is sharded."""
        return shape[self.dim(shape)] == min(shape[-2:])

    def cut(self) -> list[Shape]:
        """The weights of all layers whose matrices are cut, not only the batch."""
        return [shape for shape in self.layer if self.dim(shape) >= len(shape) - 2] * self.layers


@cache
def _long_dim(shape: Shape, world: int) -> int:
    chosen = long_dim_placement(torch.empty(shape, device="meta"), world_size=world)
    return 0 if chosen is None else int(chosen.dim)  # FSDP2 then cuts the first


def numel(shape: Shape) -> int:
    """The number of entries."""
    return torch.Size(shape).numel()
