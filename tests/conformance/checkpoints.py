"""Optimizers with a state, and what must not change when one is refused."""

import torch

from tests.conformance.methods import point

LATER = ("clipped", "rescued")  # counters that tell what happened, and are younger than some checkpoints


def parameters():
    return [point(4, 6), point(2, 5, 3, seed=1), torch.nn.Parameter(torch.linspace(-1, 1, 6).reshape(3, 2))]


def build(make, params, **options):
    """Constrained parameters with names, and an ordinary one."""
    names = ["first", "second", "rest"]
    named = list(zip(names, params, strict=True))
    return make([{"params": named[:2], **options}, {"params": named[2:], "algorithm": "adamw"}])
