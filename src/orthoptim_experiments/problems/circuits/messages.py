"""The way up the tree: what a node tells its parent, level by level.

Two kinds of messages travel the same way. The *vector* of a node is its output for given pixels. Its *density* is
R = Σ y yᴴ over all values of its pixels, from which the partition function and marginals follow; on the manifold R = I.

Both are kept at a largest entry of one, and the logarithm of what was divided out travels along, so that neither
overflows nor vanishes after a thousand products. The divisor is detached: what it would add to the gradient through the
message cancels what it would add through the logarithm.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim_experiments.problems.circuits.contraction import contract
from orthoptim_experiments.problems.circuits.structure import Level


class Messages(NamedTuple):
    """Messages of the nodes of one level.

    Attributes:
        values: vectors (nodes, units, examples), or densities (nodes, units, units).
        logs: what they are to be multiplied by, as a logarithm: (nodes, examples), or (nodes,).
    """

    values: Tensor
    logs: Tensor


def ascend(
    tree: Sequence[Level], weights: Sequence[Tensor], leaves: Messages, combine: Callable[[Tensor, Tensor], Messages]
) -> Iterator[Messages]:
    """The messages of every level, from the leaves to the root.

    Args:
        tree: the levels.
        weights: one tensor for each fold, in order.
        leaves: the messages of the pixels.
        combine: from the weights of a fold and its children's messages (nodes, arity, ...) to its own messages.
    """
    yield leaves
    remaining = iter(weights)
    values, logs = leaves
    for level in tree:
        parts = []
        for fold in level.folds:
            index = torch.tensor(fold.children, device=values.device)
            own = combine(next(remaining), values[index])
            parts.append(Messages(own.values, own.logs + logs[index].sum(1)))
        if level.passing:
            index = torch.tensor(level.passing, device=values.device)
            parts.append(Messages(values[index], logs[index]))
        values, logs = torch.cat([part.values for part in parts]), torch.cat([part.logs for part in parts])
        yield Messages(values, logs)


def leaf_vectors(leaves: Tensor, pixels: Tensor) -> Messages:
    """The vectors of the pixels: columns of the leaves.

    Args:
        leaves: (pixels, units, states).
        pixels: their values, (pixels, examples).
    """
    index = pixels[:, None].expand(-1, leaves.shape[1], -1)
    return scaled_vectors(torch.gather(leaves, 2, index))


def combine_vectors(weight: Tensor, children: Tensor) -> Messages:
    """The vectors of a fold."""
    return scaled_vectors(contract(weight, children))


def scaled_vectors(y: Tensor) -> Messages:
    """Vectors (nodes, units, examples) and the logarithm of their scale.

    The scale is the largest real or imaginary part, which is a modulus up to √2 and costs no root; at least the
    smallest normal number, so that its reciprocal is finite. A vector that is zero remains zero.
    """
    largest = torch.view_as_real(y.detach()).abs().amax(1)
    scale = torch.maximum(largest[..., 0], largest[..., 1]).clamp_min(torch.finfo(largest.dtype).tiny)
    # a complex factor: torch's product of complex and real, or of views as real, is not vectorised
    return Messages(y * scale.reciprocal().to(y.dtype)[:, None], scale.log())


def leaf_densities(leaves: Tensor) -> Messages:
    """The densities EEᴴ of the pixels, in double precision."""
    leaves = leaves.to(torch.complex128)
    return scaled_densities(leaves @ leaves.mH)


def combine_densities(weight: Tensor, children: Tensor) -> Messages:
    """The densities of a fold, a few nodes at a time: W in double precision, and twice, is large."""
    parts = zip(torch.split(weight, 4), torch.split(children, 4), strict=True)
    return scaled_densities(torch.cat([sandwich(w.to(r.dtype), r.unbind(1)) for w, r in parts]))


def sandwich(weight: Tensor, densities: Sequence[Tensor]) -> Tensor:
    """W(R₁⊗R₂⊗…)Wᴴ, for W of shape (batch, units, inputs), one factor at a time."""
    return apply_factors(weight, densities) @ weight.mH


def apply_factors(weight: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """W(A₁⊗A₂⊗…), for W of shape (batch, units, inputs), one factor at a time.

    Args:
        weight: W.
        factors: square, (batch, units of a child, units of a child); a batch of one serves all.
    """
    for factor in reversed(factors):
        # the last input is contracted and becomes the first: after a full cycle all are in place again
        rows = weight.reshape(len(weight), -1, factor.shape[-1])
        product = (rows @ factor).view(-1, weight.shape[1], rows.shape[1] // weight.shape[1], factor.shape[-1])
        weight = product.transpose(-2, -1).flatten(-2)
    return weight


def scaled_densities(r: Tensor) -> Messages:
    """Densities (nodes, ..., units, units) and the logarithm of their scale, the largest entry of the diagonal."""
    scale = r.detach().diagonal(dim1=-2, dim2=-1).real.amax(-1)
    scale = torch.where(scale == 0, 1, scale)
    return Messages(r / scale[..., None, None], scale.log())
