"""Gradients that are not finite, hidden from an optimizer that would keep them in its state for good."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.stiefel import can_look
from orthoptim.tensors import is_dtensor
from orthoptim.views import View


class FiniteGradients:
    """Zeros in place of the gradients of matrices in which an entry is not finite; the others are as they were.

    Gradients of DTensors and sparse ones are left alone.

    Args:
        groups: param groups with a view and a side.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self._members: list[tuple[Tensor, Mapping[str, Any]]] = [
            (p, group) for group in groups for p in group["params"]
        ]
        self._given: dict[int, tuple[Tensor, Tensor]] = {}
        self._finite: dict[int, Tensor] = {}

    @torch.no_grad()
    def hide_(self) -> None:
        """Replace the gradients of such matrices; may be called for gradients after gradients."""
        for index, (param, group) in enumerate(self._members):
            grad = param.grad
            if grad is None or is_dtensor(grad) or grad.layout is not torch.strided:
                continue
            if can_look(grad) and bool(torch.isfinite(grad.sum())):
                continue
            finite = _finite(grad, group)
            former = self._finite.get(index)
            self._finite[index] = finite if former is None else finite & former
            param.grad = torch.where(finite, grad, 0)
            self._given[index] = grad, param.grad

    def restore_(self) -> None:
        """Give back the gradients that were replaced last, unless somebody has set others since."""
        for index, (grad, replacement) in self._given.items():
            param, _ = self._members[index]
            if param.grad is replacement:
                param.grad = grad

    def mark(self, index: int, displacement: Tensor) -> Tensor:
        """The displacement of the index-th parameter, not a number in the matrices whose gradient was hidden."""
        finite = self._finite.get(index)
        return displacement if finite is None else torch.where(finite, displacement, torch.nan)


def _finite(grad: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Of the shape of a parameter: whether the gradient of the matrix of each entry is finite."""
    view, side = View.of(group["view"]), group["side"]
    finite = [
        torch.isfinite(x.sum((-2, -1), keepdim=True)).expand(x.shape) for x in view.to_matrices(grad.detach(), side)
    ]
    return view.from_matrices(finite, grad.shape, side)
