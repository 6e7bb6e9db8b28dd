"""A view of one's own: the heads of attention, each orthogonal by itself."""

from torch import nn

import orthoptim as oo

PER_HEAD = {
    "in_proj_weight": oo.View("matrix", split=3, heads=4),  # queries, keys, values: 4×16 for each head
    "out_proj.weight": oo.View("matrix", heads=4, dim=1),  # what the model reads of each head: 16×4
}


def make_attention() -> nn.MultiheadAttention:
    return oo.orthogonalize_(nn.MultiheadAttention(embed_dim=16, num_heads=4), PER_HEAD)


def make_optimizer(attention: nn.MultiheadAttention) -> oo.POGO:
    return oo.POGO(oo.param_groups(attention, PER_HEAD, lr=0.1, rest={"algorithm": "adamw", "lr": 1e-3}))
