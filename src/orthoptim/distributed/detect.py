"""Which tensors are DTensors, at no cost to those who have none."""

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor
from torch.nn import Parameter

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_dtensor(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is a DTensor; there is none before the module of that name has been imported."""
    kind = type(tensor)
    if kind is Tensor or kind is Parameter:
        return False
    if kind.__name__ == "DTensor":  # by far the most frequent of the others
        return True
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor; of a DTensor, all ranks must ask."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor
