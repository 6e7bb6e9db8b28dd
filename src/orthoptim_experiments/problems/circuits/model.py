"""Squared unitary circuits: the density |c(x)|² of a tree of unitary matrices, normalised because they are unitary."""

import math

import torch
from torch import Tensor, nn

import orthoptim as oo
from orthoptim_experiments.problems.circuits.messages import (
    ascend,
    combine_densities,
    combine_vectors,
    leaf_densities,
    leaf_vectors,
)
from orthoptim_experiments.problems.circuits.structure import quad_tree


class SquaredUnitaryCircuit(nn.Module):
    r"""A probability distribution over images, p(x) = |c(x)|², with c a circuit of complex matrices over a quad-tree.

    A pixel with value s outputs column s of its leaf E (units × states); an inner node outputs W(y₁⊗y₂⊗y₃⊗y₄), where
    the yᵢ are its children's outputs; the root has one unit, and outputs c(x). If all matrices have orthonormal rows,
    as they have at first, p sums to one. Elsewhere the partition function is exact too, see :meth:`log_partition`.

    Every parameter is a batch of matrices, ready for ``oo.POGO(circuit.parameters(), lr=0.5)``: ``leaves`` (pixels,
    units, states), and in ``weights``, for each level and each number of children, (nodes, units, units⁴ or units²).

    Args:
        height: of the images.
        width: of the images.
        units: K, the length of each node's output.
        states: the values a pixel can have.
        dtype: complex64 or complex128.
        device: where the parameters live.
        generator: source of the random initial matrices (Haar).

    Example:
        >>> circuit = SquaredUnitaryCircuit(2, 2, units=2, states=3)
        >>> images = torch.cartesian_prod(*[torch.arange(3)] * 4).view(-1, 2, 2)
        >>> circuit(images).exp().sum().isclose(torch.tensor(1.0)).item()
        True
    """

    def __init__(
        self,
        height: int,
        width: int,
        units: int,
        states: int = 256,
        *,
        dtype: torch.dtype = torch.complex64,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= units <= states:
            raise ValueError(f"units must be between 1 and states={states}, or no leaf is unitary, but got {units}")
        if not dtype.is_complex:
            raise ValueError(f"dtype must be complex, but got {dtype}")
        self.height, self.width, self.units, self.states = height, width, units, states
        self.tree = quad_tree(height, width)
        shapes = [
            (len(fold.children), 1 if level is self.tree[-1] else units, units**fold.arity)
            for level in self.tree
            for fold in level.folds
        ]
        self.leaves = nn.Parameter(torch.empty(height * width, units, states, dtype=dtype, device=device))
        self.weights = nn.ParameterList([torch.empty(shape, dtype=dtype, device=device) for shape in shapes])
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new unitary matrices."""
        for parameter in self.parameters():
            if not parameter.is_meta:
                oo.orthogonalize_(parameter, side="rows", init="random", generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        """Evaluate log |c(x)|² of each image: its log-likelihood, where all matrices are unitary.

        Elsewhere the log-likelihood is this minus :meth:`log_partition`.

        Args:
            images: integers (examples, height, width), with any dims of size one between.
        """
        *_, root = ascend(
            self.tree, list(self.weights), leaf_vectors(self.leaves, self.columns(images)), combine_vectors
        )
        modulus = torch.view_as_real(root.values[0, 0]).square().sum(-1)
        return modulus.log() + 2 * root.logs[0]

    def log_partition(self) -> Tensor:
        """Sum |c(x)|² over all images: log Z, exact for any matrices, in double precision; 0 for unitary ones."""
        *_, root = ascend(self.tree, list(self.weights), leaf_densities(self.leaves), combine_densities)
        return root.values[0, 0, 0].real.log() + root.logs[0]

    def columns(self, images: Tensor) -> Tensor:
        """The pixels of images as int64 (pixels, examples), raster order."""
        if images.is_floating_point() or images.is_complex():
            raise ValueError(f"images must hold integers from 0 to {self.states - 1}, but got {images.dtype}")
        if images.dim() < 2 or math.prod(images.shape[1:]) != self.height * self.width:
            expected = f"(examples, {self.height}, {self.width})"
            raise ValueError(f"images must have shape {expected}, but got {tuple(images.shape)}")
        return images.flatten(1).T.to(self.leaves.device, torch.int64)

    def extra_repr(self) -> str:
        """See :meth:`torch.nn.Module.extra_repr`."""
        return f"{self.height}, {self.width}, units={self.units}, states={self.states}"


def bits_per_dimension(log_likelihood: Tensor, circuit: SquaredUnitaryCircuit) -> Tensor:
    """The mean negative log-likelihood in bits per pixel."""
    return -log_likelihood.mean() / (circuit.height * circuit.width * math.log(2))
