"""In which arithmetic products run."""

import torch
from torch import Tensor


def full_precision(tensor: Tensor) -> torch.autocast:
    """A context in which autocast, which would round the products, is off."""
    return torch.autocast("cpu" if tensor.is_meta else tensor.device.type, enabled=False)  # there is none of meta
