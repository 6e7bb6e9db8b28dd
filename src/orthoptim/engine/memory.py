"""Memory that a step frees, kept for the next one."""

import torch

LARGEST = 31 << 20
"""Bytes: glibc takes no lesson from a block of 32 MB or more."""


def keep_freed_memory() -> None:
    """Have the C library keep what is freed, up to 64 MB, instead of giving it back to the system.

    glibc keeps free memory up to twice the size of the largest block that it has ever got back, at first 128 kB. A
    process that frees tensors of 30 MB, as most trainings do, keeps enough. In any other, every step would have the
    system map and clear the pages of all its temporaries again; measured: five to fourteen thousand of them, for which
    784 matrices of 10×256 take 1.6 times as long, 218 624 of 3×3 1.4 times, a thousand of 64×64 1.2 times. So one such
    block is allocated and freed, of which no page is ever touched. Other allocators do not mind.
    """
    torch.empty(LARGEST, dtype=torch.uint8, device="cpu")
