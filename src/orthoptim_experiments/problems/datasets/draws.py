"""Random draws that are a function of a seed and of what they are for, so that resuming needs no generator's state."""

import hashlib

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed of its own for each purpose, such as ``derive_seed(0, "order", epoch)``.

    Example:
        >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 1) != derive_seed(0, "order", 2)
        True
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A generator for one purpose; on the CPU, so that its draws are the same for every device."""
    return torch.Generator().manual_seed(derive_seed(seed, *purpose))
