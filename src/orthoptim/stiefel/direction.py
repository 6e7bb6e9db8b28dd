"""The direction G of a step."""

import torch
from torch import Tensor


class Direction:
    """The direction G, to be descended: matrices (B, p, n), times a factor (B,) of each where it is not ``None``.

    A factor apart costs no pass over memory: it can be multiplied into smaller things. Where the matrices are pieces,
    it is known with the first sums over columns, not before: VAdam's depends on ‖∇f‖.

    Args:
        matrices: G up to its factor.
        scale: the factor; a Python number where the batch is one matrix on a CPU.
        known: whether that is the factor; else :meth:`set_scale` will say.

    Attributes:
        matrices: G up to its factor.
        numbers: the factor as it was given.
    """

    def __init__(self, matrices: Tensor, scale: Tensor | float | None = None, known: bool = True) -> None:
        self.matrices = matrices
        self.numbers = scale
        self._known = known

    @property
    def scale(self) -> Tensor | None:
        """The factor of each matrix; ``None``: one."""
        if not self._known:
            raise RuntimeError("the factor of a direction is known from the first sums over columns on, not before")
        if isinstance(self.numbers, float):
            self.numbers = self.matrices.real.new_full((1,), self.numbers)
        return self.numbers

    def set_scale(self, scale: Tensor | None) -> None:
        """Make the factor known."""
        self.numbers, self._known = scale, True

    def times(self, factor: Tensor) -> Tensor:
        """What to multiply ``matrices`` by to have factor·G: a number, or (B, 1, 1).

        Args:
            factor: a number, or one for each matrix.
        """
        product = factor
        if self.scale is not None:  # that of a direction of zeros may be huge: infinity times zero is no number
            largest = torch.finfo(self.scale.dtype).max
            product = (factor * self.scale).clamp(-largest, largest)
        return product[:, None, None] if product.ndim else product

    def whole(self) -> Tensor:
        """G itself."""
        return self.matrices if self.scale is None else self.matrices * self.scale[..., None, None]
