"""What the tests of landing policies share."""

import torch

from orthoptim import stiefel

norm = torch.linalg.matrix_norm


def spectral_distance(x):
    """‖XXᴴ − I‖₂ in double precision, the worst of a batch."""
    x = x.to(torch.complex128)
    return float(torch.linalg.eigvalsh(stiefel.defect(x)).abs().max())


def half(x, g, lr):
    return stiefel.pogo_step(x, g, lr, stiefel.policy("half")).x


FORM_SHAPES = [("tiny", (3, 3)), ("direct-n", (10, 10)), ("direct-p", (4, 12)), ("gram", (4, 12))]
