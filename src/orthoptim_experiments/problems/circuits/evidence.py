"""Some pixels seen, the others summed out: exact marginals, and the messages that conditional samples start from.

A node whose pixels are all seen sends a vector, one whose pixels are all hidden the density of the partition function.
Both exist for whole levels at once. Only nodes with some of each, along the border between seen and hidden, need a
density for each example; there, the vectors of children are contracted first, which leaves little for the densities.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from orthoptim_experiments.problems.circuits.messages import (
    Messages,
    ascend,
    combine_densities,
    combine_vectors,
    leaf_densities,
    leaf_vectors,
    sandwich,
    scaled_densities,
)
from orthoptim_experiments.problems.circuits.model import SquaredUnitaryCircuit


@dataclass(frozen=True)
class Evidence:
    """What the nodes of one level know about the pixels below them.

    Attributes:
        seen: for each node, whether all its pixels are seen.
        hidden: for each node, whether all its pixels are hidden.
        vectors: the vectors of all nodes; without meaning where a pixel is hidden.
        densities: the densities of all nodes with all their pixels summed out.
        mixed: for each of the other nodes its density for each example (examples, units, units), and its logarithms.
    """

    seen: list[bool]
    hidden: list[bool]
    vectors: Messages
    densities: Messages
    mixed: dict[int, Messages]

    def vector(self, node: int) -> Tensor:
        """The vector of a node whose pixels are seen, (examples, units)."""
        return self.vectors.values[node].T

    def density(self, node: int) -> Tensor:
        """The density of any other node, (1 or examples, units, units)."""
        if self.hidden[node]:
            return self.densities.values[node][None].to(self.vectors.values.dtype)
        return self.mixed[node].values

    def logs(self, node: int) -> Tensor:
        """The logarithm by which a density is to be multiplied, (1 or examples,): twice that of a vector."""
        if self.seen[node]:
            return 2 * self.vectors.logs[node]
        return self.densities.logs[node][None] if self.hidden[node] else self.mixed[node].logs


def log_marginal(circuit: SquaredUnitaryCircuit, images: Tensor, seen: Tensor) -> Tensor:
    """Sum |c(x)|² over all images that agree with the given ones where they are seen, as a logarithm.

    That is the log-likelihood of the seen pixels where all matrices are unitary, and elsewhere up to
    ``circuit.log_partition()``. With all pixels seen it is ``circuit(images)``.

    Args:
        circuit: the model.
        images: integers (examples, height, width); what stands in hidden pixels does not matter.
        seen: boolean, (height, width) for all examples or (examples, height, width).

    Example:
        >>> circuit = SquaredUnitaryCircuit(2, 2, units=2, states=3)
        >>> seen = torch.tensor([[True, False], [False, False]])
        >>> images = torch.zeros(3, 2, 2, dtype=torch.int64)
        >>> images[:, 0, 0] = torch.arange(3)
        >>> log_marginal(circuit, images, seen).exp().sum().isclose(torch.tensor(1.0)).item()
        True
    """
    return for_each_mask(circuit, images, seen, _log_marginal)


def _log_marginal(circuit: SquaredUnitaryCircuit, pixels: Tensor, seen: Tensor) -> Tensor:
    root = gather_evidence(circuit, pixels, seen)[-1]
    amplitude = torch.view_as_real(root.vectors.values[0, 0])
    value = amplitude.square().sum(-1) if root.seen[0] else root.density(0)[:, 0, 0].real
    return (value.log() + root.logs(0)).to(amplitude.dtype).expand(pixels.shape[1])


def for_each_mask(
    circuit: SquaredUnitaryCircuit,
    images: Tensor,
    seen: Tensor,
    function: Callable[[SquaredUnitaryCircuit, Tensor, Tensor], Tensor],
) -> Tensor:
    """Call a function of (circuit, pixels (pixels, examples), mask (pixels,)) once for each mask among the examples.

    It returns one row for each example; the rows come back in the order of the examples.
    """
    height, width = circuit.height, circuit.width
    if seen.dtype != torch.bool:
        raise ValueError(f"seen must be boolean, but got {seen.dtype}")
    if tuple(seen.shape) not in ((height, width), (len(images), height, width)):
        expected = f"({height}, {width}) or (examples, {height}, {width})"
        raise ValueError(f"seen must have shape {expected}, but got {tuple(seen.shape)}")
    seen = seen.to(circuit.leaves.device)
    pixels = circuit.columns(images)
    if seen.dim() == 2:
        return function(circuit, torch.where(seen.reshape(-1, 1), pixels, 0), seen.flatten())
    masks, which = torch.unique(seen.flatten(1), dim=0, return_inverse=True)
    groups = [(which == number).nonzero()[:, 0] for number in range(len(masks))]
    rows = [
        function(circuit, torch.where(mask[:, None], pixels[:, group], 0), mask)
        for mask, group in zip(masks, groups, strict=True)
    ]
    return torch.cat(rows)[torch.cat(groups).argsort()] if groups else function(circuit, pixels, seen.new_ones(0))


def gather_evidence(circuit: SquaredUnitaryCircuit, pixels: Tensor, seen: Tensor) -> list[Evidence]:
    """What is known at each level, from the leaves to the root.

    Args:
        circuit: the model.
        pixels: (pixels, examples); valid values in hidden pixels too.
        seen: (pixels,).
    """
    weights = list(circuit.weights)
    vectors = ascend(circuit.tree, weights, leaf_vectors(circuit.leaves, pixels), combine_vectors)
    densities = ascend(circuit.tree, weights, leaf_densities(circuit.leaves), combine_densities)
    known: list[bool] = seen.tolist()
    levels = [Evidence(known, [not pixel for pixel in known], next(vectors), next(densities), {})]
    remaining: Iterator[Tensor] = iter(weights)
    for level, own_vectors, own_densities in zip(circuit.tree, vectors, densities, strict=True):
        below = levels[-1]
        own_weights = [next(remaining) for _ in level.folds]
        origins = list(level.origins())
        all_seen = [all(below.seen[child] for child in children) for _, _, children in origins]
        all_hidden = [all(below.hidden[child] for child in children) for _, _, children in origins]
        mixed = {}
        for node, (fold, row, children) in enumerate(origins):
            if all_seen[node] or all_hidden[node]:
                continue
            mixed[node] = (
                below.mixed[children[0]] if fold < 0 else _mixed_density(own_weights[fold][row], below, children)
            )
        levels.append(Evidence(all_seen, all_hidden, own_vectors, own_densities, mixed))
    return levels


def _mixed_density(weight: Tensor, below: Evidence, children: tuple[int, ...]) -> Messages:
    """The density of a node for each example."""
    vectors = [below.vector(child) if below.seen[child] else None for child in children]
    open_weight = contract_seen(weight[None], vectors)
    densities = [below.density(child) for child in children if not below.seen[child]]
    r, logs = scaled_densities(sandwich(open_weight, densities))
    return Messages(r, logs + torch.stack([below.logs(child).expand(len(r)) for child in children]).sum(0))


def contract_seen(weight: Tensor, vectors: list[Tensor | None]) -> Tensor:
    """Contract W (1 or examples, units, inputs) with the vectors (examples, units) of those children that have one.

    The inputs that remain are those of the others, in order.
    """
    units = round(weight.shape[-1] ** (1 / len(vectors)))
    after = 1
    for vector in reversed(vectors):
        if vector is None:
            after *= units
            continue
        split = weight.view(*weight.shape[:2], -1, units, after).transpose(-2, -1)
        rows = split.reshape(len(weight), -1, units)
        product = (rows[0] @ vector.T).T if len(weight) == 1 else (rows @ vector[:, :, None])[..., 0]
        weight = product.reshape(len(vector), weight.shape[1], -1)
    return weight
