"""Matrices of one shape among the entries of a parameter: where they are, which side is orthonormal, and their scale.

This is the only code that reshapes, slices or transposes a parameter, and that knows its scale: where a parameter is
meant to have XXᴴ = σ²I, its matrices are X/σ.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Side = Literal["auto", "rows", "columns"]
"""Which side is orthonormal: ``auto`` is the shorter one."""

Scale = float | Literal["rms"]
"""σ of the manifold XXᴴ = σ²I, see :func:`scale_factor`."""

SIDES: tuple[str, ...] = get_args(Side)


@dataclass(frozen=True)
class Blocks:
    """Blocks of one size that follow each other along a dim of a tensor.

    Attributes:
        dim: the dim.
        start: where the first block begins.
        size: length of a block.
        count: how many blocks there are.
        first: how many blocks of the tensor come before the first.
        order: the dims of the batch of blocks: those before the matrices, then those of a matrix.
    """

    dim: int
    start: int
    size: int
    count: int
    first: int
    order: tuple[int, ...]

    def entries(self, tensor: Tensor) -> Tensor:
        """The blocks as a batch (..., count, rows, columns...): a view of the memory of the tensor."""
        if self.count * self.size != tensor.shape[self.dim]:
            tensor = tensor.narrow(self.dim, self.start, self.count * self.size)
        return torch.unflatten(tensor, self.dim, (self.count, self.size)).permute(self.order)

    def values(self, values: Tensor) -> Tensor:
        """The values of these blocks among those of all, whose last dim counts blocks; a view of the same memory."""
        return values if values.shape[-1] == self.count else values.narrow(-1, self.first, self.count)


class Part(NamedTuple):
    """Matrices of one shape in a parameter.

    Attributes:
        batch: the shape of their batch.
        p: rows of a matrix, the shorter side.
        n: columns.
        transposed: whether the tensor holds the matrices transposed.
        blocks: which slice of the tensor they are; None: all of it.
        scale: σ: the tensor holds σ times the matrices.
    """

    batch: torch.Size
    p: int
    n: int
    transposed: bool
    blocks: Blocks | None = None
    scale: float = 1.0

    def entries(self, tensor: Tensor) -> Tensor:
        """The entries of these matrices in a tensor of the parameter's shape, as a view (*batch, rows, columns...)."""
        return tensor if self.blocks is None else self.blocks.entries(tensor)

    def values(self, values: Tensor) -> Tensor:
        """The values of these matrices among those of all matrices of the parameter."""
        return values if self.blocks is None else self.blocks.values(values)

    def matrices(self, tensor: Tensor) -> Tensor:
        """The matrices (*batch, p, n) in a tensor of the parameter's shape: a view where strides and scale allow.

        A transpose (not an adjoint) turns orthonormal columns into orthonormal rows, for complex entries too.
        """
        stored = (self.n, self.p) if self.transposed else (self.p, self.n)
        matrices = self.entries(tensor).reshape(*self.batch, *stored)
        matrices = matrices if self.scale == 1 else matrices / self.scale
        return matrices.mT if self.transposed else matrices

    def write_(self, tensor: Tensor, matrices: Tensor) -> None:
        """The inverse of :meth:`matrices`, in place."""
        entries = self.entries(tensor)
        matrices = matrices if self.scale == 1 else matrices * self.scale
        entries.copy_((matrices.mT if self.transposed else matrices).reshape(entries.shape))


def make_part(batch: torch.Size, rows: int, columns: int, side: str, scale: Scale) -> Part:
    """The matrices that are stored as rows × columns; raises ValueError where that side cannot be orthonormal."""
    if rows == 0 or columns == 0:
        raise ValueError(f"has no entries: it is seen as {rows}×{columns}")
    if (side == "rows" and rows > columns) or (side == "columns" and columns > rows):
        raise ValueError(f"is seen as {rows}×{columns}, whose {side} are too many to be orthonormal: use side 'auto'")
    transposed = side == "columns" or (side == "auto" and rows > columns)
    p, n = (columns, rows) if transposed else (rows, columns)
    return Part(batch, p, n, transposed, scale=scale_factor(scale, rows, columns))


def scale_factor(scale: Scale, rows: int, columns: int) -> float:
    """σ for the manifold XXᴴ = σ²I of matrices that are stored as rows × columns.

    ``"rms"`` is √(rows/columns): the weight of a linear layer, out × in, then keeps the root mean square of what it is
    given (of what lies in its row space, if it is wide). It is the scale of spectral norms under which features neither
    grow nor shrink with the width (Yang, Simon, Bernstein 2023), and 1 for square matrices.

    Raises:
        ValueError: if it is no such thing.

    Example:
        >>> scale_factor("rms", 64, 16), scale_factor(0.5, 64, 16)
        (2.0, 0.5)
    """
    if scale == "rms":
        return math.sqrt(rows / columns)
    # a tuple, not a union: torch 2.9 traces no union
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
        raise ValueError(f"Invalid scale: {scale!r}; it is a positive number, or 'rms'")
    return float(scale)
