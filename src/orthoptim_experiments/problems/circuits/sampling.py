"""Exact samples, from the root down, one subtree after the other; given some pixels, or none.

A node is asked for a sample of its pixels with probability ∝ |φ·y|², where y is the vector it will output and φ comes
from above. Its amplitude w = φW lives on the product of its children's spaces. The pixels of the first child follow a
mixture: with the densities R = LLᴴ of the others, column k of A = w(1⊗L⊗L⊗L) is a possible φ for the child, with
weight Aₖᵀ R₁ conj(Aₖ). So k is drawn, the child draws its pixels and returns their vector, w is contracted with it,
and it is the next child's turn. All samples take each step together. Densities that know of seen pixels make it a
sample given those.
"""

from itertools import accumulate

import torch
from torch import Tensor

from orthoptim_experiments.problems.circuits.contraction import contract
from orthoptim_experiments.problems.circuits.evidence import Evidence, contract_seen, for_each_mask, gather_evidence
from orthoptim_experiments.problems.circuits.messages import apply_factors
from orthoptim_experiments.problems.circuits.model import SquaredUnitaryCircuit


def sample(circuit: SquaredUnitaryCircuit, count: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Independent images from p(x) = |c(x)|²/Z, int64 (count, height, width).

    Example:
        >>> circuit = SquaredUnitaryCircuit(4, 4, units=2, states=5)
        >>> sample(circuit, 7).shape
        torch.Size([7, 4, 4])
    """
    images = torch.zeros(count, circuit.height, circuit.width, dtype=torch.int64, device=circuit.leaves.device)
    return inpaint(circuit, images, images.new_zeros(images.shape[1:], dtype=torch.bool), generator=generator)


@torch.no_grad()
def inpaint(
    circuit: SquaredUnitaryCircuit, images: Tensor, seen: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw the hidden pixels of each image from their distribution given the seen ones.

    For several in-paintings of one image, repeat it.

    Args:
        circuit: the model.
        images: integers (examples, height, width); what stands in hidden pixels does not matter.
        seen: boolean, (height, width) for all examples or (examples, height, width).
        generator: source of randomness.

    Returns:
        int64 (examples, height, width).
    """

    def draw(circuit: SquaredUnitaryCircuit, pixels: Tensor, mask: Tensor) -> Tensor:
        return _Draw(circuit, pixels, mask, generator).run()

    rows = for_each_mask(circuit, images, seen, draw)
    return rows.view(-1, circuit.height, circuit.width)


class _Draw:
    """One set of samples on its way down the tree, all with the same pixels seen."""

    def __init__(
        self, circuit: SquaredUnitaryCircuit, pixels: Tensor, seen: Tensor, generator: torch.Generator | None
    ) -> None:
        self.circuit, self.generator = circuit, generator
        self.pixels = pixels.clone()
        self.evidence = gather_evidence(circuit, pixels, seen)
        self.factors: list[dict[int, Tensor]] = [_hidden_factors(level) for level in self.evidence]
        self.origins = [list(level.origins()) for level in circuit.tree]
        self.first_fold = list(accumulate([0, *(len(level.folds) for level in circuit.tree)]))

    def run(self) -> Tensor:
        """The samples, (examples, pixels)."""
        examples = self.pixels.shape[1]
        self._check_possible()
        if examples:
            self._subtree(len(self.circuit.tree), 0, self.circuit.leaves.new_ones(examples, 1))
        return self.pixels.T

    def _check_possible(self) -> None:
        root = self.evidence[-1]
        if not root.seen[0] and not bool((root.density(0)[:, 0, 0].real > 0).all()):
            raise ValueError("the seen pixels of an image have probability zero: nothing to draw from")

    def _subtree(self, height: int, node: int, effect: Tensor) -> Tensor:
        """Draw the hidden pixels below a node with probability ∝ |effect·y|², and return y, both (examples, units)."""
        below = self.evidence[height]
        if below.seen[node]:
            return below.vector(node)
        if height == 0:
            return self._leaf(node, effect)
        fold, row, children = self.origins[height - 1][node]
        if fold < 0:
            return self._subtree(height - 1, children[0], effect)
        weight = self.circuit.weights[self.first_fold[height - 1] + fold][row]
        vectors = self._children(height - 1, children, effect @ weight)
        return _scaled(contract(weight[None], torch.stack(vectors).mT[None])[0].T)

    def _leaf(self, pixel: int, effect: Tensor) -> Tensor:
        leaf = self.circuit.leaves[pixel]
        value = self._categorical(effect @ leaf)
        self.pixels[pixel] = value
        return _scaled(leaf[:, value].T)

    def _children(self, height: int, children: tuple[int, ...], amplitude: Tensor) -> list[Tensor]:
        """The vectors of all children, those of the hidden ones drawn one after the other."""
        level = self.evidence[height]
        vectors = [level.vector(child) if level.seen[child] else None for child in children]
        rest = contract_seen(amplitude[:, None], vectors)  # (examples, 1, inputs of the hidden children)
        hidden = [place for place, vector in enumerate(vectors) if vector is None]
        while hidden:
            place, *hidden = hidden
            first, *others = [self._factor(height, children[place]) for place in [place, *hidden]]
            rest = _scaled(rest)
            columns = rest.view(len(rest), first.shape[-1], -1)
            if others:
                columns = apply_factors(columns, others)
            weights = first.mT @ columns
            chosen = self._categorical(weights)
            effect = columns.gather(2, chosen[:, None, None].expand(-1, columns.shape[1], 1))[..., 0]
            vector = self._subtree(height, children[place], _scaled(effect))
            vectors[place] = vector
            rest = contract_seen(rest, [vector, *[None] * len(hidden)])
        return [vector for vector in vectors if vector is not None]

    def _factor(self, height: int, node: int) -> Tensor:
        """L (1 or examples, units, units) with LLᴴ = R."""
        factors = self.factors[height]
        if node not in factors:
            factors[node] = _factor(self.evidence[height].density(node))
        return factors[node]

    def _categorical(self, amplitudes: Tensor) -> Tensor:
        """For each example a column k of (examples, ..., columns), with probability ∝ its squared norm."""
        parts = torch.view_as_real(_scaled(amplitudes)).square().sum(-1)
        weights = parts.flatten(1, -2).sum(1) if parts.dim() > 2 else parts
        return torch.multinomial(weights, 1, generator=self.generator)[:, 0]


def _hidden_factors(level: Evidence) -> dict[int, Tensor]:
    """The factors of all nodes whose pixels are all hidden, in one call."""
    nodes = [node for node, hidden in enumerate(level.hidden) if hidden]
    if not nodes:
        return {}
    factors = _factor(level.densities.values[nodes]).to(level.vectors.values.dtype)
    return {node: factor[None] for node, factor in zip(nodes, factors, strict=True)}


def _factor(density: Tensor) -> Tensor:
    """L with LLᴴ = R, from the spectrum: a density along a border may be singular."""
    values, vectors = torch.linalg.eigh(density)
    factor: Tensor = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return factor


def _scaled(x: Tensor) -> Tensor:
    """Divide each example by its largest part: only ratios matter, and squares must not vanish."""
    parts = torch.view_as_real(x)
    scale = parts.abs().flatten(1).amax(1).clamp_min(torch.finfo(parts.dtype).tiny)
    return x / scale.view(-1, *[1] * (x.dim() - 1))
