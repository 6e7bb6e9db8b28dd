"""Recurrent networks h ← modReLU(Wh + Vx) with an orthogonal or unitary W, in three ways; and an LSTM.

Where W is parametrized, it is computed once for each batch and not at each time step, as under torch's
``parametrize.cached()``. Products with inputs are made for all times at once.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from orthoptim_experiments.problems.copying.recurrence import recur

KINDS = ("parameter", "matrix_exp", "cayley", "geotorch")
"""How W is kept orthogonal: by its optimizer, by a parametrization of torch, or by one of geotorch."""


def initial(units: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Rotations by random angles: of planes for a real matrix, of single entries for a complex one."""
    if dtype.is_complex:
        return torch.diag(torch.polar(torch.ones(units), _angles(units, generator)))
    angles = _angles(units // 2, generator)
    cos, sin = angles.cos(), angles.sin()
    even = torch.arange(0, units - 1, 2)
    weight = torch.eye(units)
    weight[even, even], weight[even, even + 1] = cos, -sin
    weight[even + 1, even], weight[even + 1, even + 1] = sin, cos
    return weight


def _angles(count: int, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(count, generator=generator) - 1) * math.pi


class Recurrence(nn.Module):
    """The network above, with logits of each state.

    Args:
        inputs: entries of an input.
        units: entries of the state.
        outputs: classes.
        kind: one of :data:`KINDS`.
        dtype: of the state; logits are those of its real and imaginary parts.
        generator: of the start, which is the same for every kind.
    """

    def __init__(
        self, inputs: int, units: int, outputs: int, kind: str, dtype: torch.dtype, generator: torch.Generator
    ) -> None:
        super().__init__()
        numbers = 2 if dtype.is_complex else 1
        self.recurrent = nn.Module()
        start = initial(units, dtype, generator)
        self.recurrent.weight = nn.Parameter(start.clone())
        parametrized(self.recurrent, kind, start)
        self.input = nn.Parameter(torch.randn(inputs, units, dtype=dtype, generator=generator) * (2 / inputs) ** 0.5)
        self.bias = nn.Parameter(0.02 * torch.rand(units, generator=generator) - 0.01)
        self.output = nn.Parameter(
            torch.randn(outputs, numbers * units, generator=generator) / (numbers * units) ** 0.5
        )
        self.offset = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, steps: int) -> Tensor:
        """Logits (steps, batch, outputs) of the last ``steps`` states, for inputs (time, batch, inputs)."""
        driven = x.to(self.input.dtype) @ self.input
        last = recur(driven, self.weight(), self.bias)[-steps:]
        last = torch.view_as_real(last).flatten(-2) if last.is_complex() else last
        return last @ self.output.mT + self.offset

    def weight(self) -> Tensor:
        """W, computed if it is parametrized."""
        weight: Tensor = self.recurrent.weight  # type: ignore[assignment]
        return weight

    def studied(self) -> list[nn.Parameter]:
        """What stands for W: itself, or what it is made of."""
        return [*self.recurrent.parameters()]


def parametrized(module: Any, kind: str, start: Tensor) -> None:
    """Parametrize ``module.weight`` so that it begins at the start."""
    if kind in ("matrix_exp", "cayley"):
        parametrizations.orthogonal(module, "weight", orthogonal_map=kind)
    elif kind == "geotorch":
        import geotorch

        geotorch.orthogonal(module, "weight")
        module.weight = start


class LSTM(nn.Module):
    """torch's LSTM, with logits of each state."""

    def __init__(self, inputs: int, units: int, outputs: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(inputs, units), nn.Linear(units, outputs)

    def forward(self, x: Tensor, steps: int) -> Tensor:
        """See :meth:`Recurrence.forward`."""
        logits: Tensor = self.head(self.lstm(x)[0][-steps:])
        return logits

    def studied(self) -> list[nn.Parameter]:
        """All but the head."""
        return [*self.lstm.parameters()]
