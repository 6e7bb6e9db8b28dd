"""One fold of inner nodes for a batch of examples: y = W(y₁⊗y₂⊗y₃⊗y₄), without the Kronecker vector.

With u = y₁⊗y₂ and v = y₃⊗y₄ (for two children u = y₁, v = y₂)

    t[o,i] = Σⱼ W[o,i,j] v[j]      y[o] = Σᵢ t[o,i] u[i]

so that all but a K²-th of the work is one matrix product per node, batched over nodes. Examples are the last dimension:
every other operation then runs along contiguous memory.

The backward pass is written out, for two reasons. It works with ȳ = conj(gradient), for which the chain rule is that
of holomorphic functions (no conjugates of anything large); and it goes through the nodes in blocks that fit the cache.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

BLOCK = 2**19  # entries of t in one block: 4 MiB in complex64


def contract(weight: Tensor, children: Tensor, block_entries: int = BLOCK) -> Tensor:
    """The outputs of inner nodes.

    Args:
        weight: (nodes, units, inputs), where inputs is the product of the children's units.
        children: (nodes, arity, units of a child, examples), arity two or four.
        block_entries: the most entries of t in a block of nodes.

    Returns:
        (nodes, units, examples).

    Example:
        >>> a, b = torch.randn(2, 3, 1, dtype=torch.complex128)
        >>> w = torch.randn(5, 9, dtype=torch.complex128)
        >>> y = contract(w[None], torch.stack([a, b])[None])
        >>> torch.allclose(y[0], w @ torch.kron(a, b))
        True
    """
    trained = torch.is_grad_enabled() and (weight.requires_grad or children.requires_grad)
    out: Tensor = _Contraction.apply(weight, children, trained, block_entries)  # type: ignore[no-untyped-call]
    return out


class _Contraction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, children: Tensor, trained: bool, block_entries: int) -> Tensor:
        nodes, units, _ = weight.shape
        out = children.new_empty(nodes, units, children.shape[-1])
        kept: list[Tensor] = []
        scratch: dict[torch.Size, Tensor] = {}
        ctx.block_entries = block_entries
        for block in _blocks(weight, children, block_entries):
            u, v = _halves(children[block])
            t = torch.bmm(_tall(weight[block], v), v).view(len(u), units, *u.shape[1:])
            if trained:
                kept.append(t)
            product = torch.mul(t, u[:, None], out=_scratch(scratch, t))
            _sum(product, 2, out=out[block])
        ctx.save_for_backward(weight, children, *kept)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weight, children, *kept = ctx.saved_tensors
        of_weight, of_children, *_ = ctx.needs_input_grad
        d_weight = torch.empty_like(weight) if of_weight else None
        d_children = torch.empty_like(children) if of_children else None
        bar = gradient.conj().resolve_conj()
        scratch: dict[torch.Size, Tensor] = {}
        for block, t in zip(_blocks(weight, children, ctx.block_entries), kept, strict=True):
            u, v = _halves(children[block])
            room = _scratch(scratch, t)
            u_bar = _sum(torch.mul(bar[block, :, None], t, out=room), 1, out=torch.empty_like(u))
            t_bar = torch.mul(bar[block, :, None], u[:, None], out=room).flatten(1, 2)
            if d_weight is not None:
                torch.bmm(t_bar, v.mT, out=_tall(d_weight[block], v))
            if d_children is not None:
                v_bar = torch.bmm(_tall(weight[block], v).mT, t_bar)
                _unkron(u_bar, v_bar, children[block], out=d_children[block])
        for result in (d_weight, d_children):
            if result is not None:
                torch.view_as_real(result)[..., 1].neg_()  # from ȳ's world back to gradients
        return d_weight, d_children, None, None


def _blocks(weight: Tensor, children: Tensor, block_entries: int) -> Iterator[slice]:
    """Slices of nodes; as many at least as there are threads, which share out the products of a block."""
    nodes, arity, units, examples = children.shape
    size = nodes
    if weight.device.type == "cpu":
        entries = weight.shape[1] * units ** (arity // 2) * examples
        threads = torch.get_num_threads()
        size = max(1, block_entries // max(1, entries * threads)) * threads
    return (slice(start, start + size) for start in range(0, nodes, size))


def _scratch(kept: dict[torch.Size, Tensor], like: Tensor) -> Tensor:
    """Memory for a block, used again for the next: a sixth faster than fresh memory at 4 MiB (page faults)."""
    if like.shape not in kept:
        kept[like.shape] = torch.empty_like(like)
    return kept[like.shape]


def _tall(weight: Tensor, v: Tensor) -> Tensor:
    """W as the matrix (nodes, o·i, j)."""
    return weight.view(weight.shape[0], -1, v.shape[1])


def _halves(children: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors u and v."""
    if children.shape[1] == 2:
        return children[:, 0], children[:, 1]
    return _kron(children[:, 0], children[:, 1]), _kron(children[:, 2], children[:, 3])


def _kron(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :, None] * b[:, None]).flatten(1, 2)


def _unkron(u_bar: Tensor, v_bar: Tensor, children: Tensor, out: Tensor) -> None:
    """From ū and v̄ to those of the children."""
    if children.shape[1] == 2:
        out[:, 0], out[:, 1] = u_bar, v_bar
        return
    units = children.shape[2]
    for first, bar in ((0, u_bar), (2, v_bar)):
        a, b = children[:, first], children[:, first + 1]
        square = bar.view(len(bar), units, *b.shape[1:])
        _sum(square * b[:, None], 2, out=out[:, first])
        _sum(square * a[:, :, None], 1, out=out[:, first + 1])


def _sum(x: Tensor, dim: int, out: Tensor) -> Tensor:
    torch.sum(torch.view_as_real(x), dim, out=torch.view_as_real(out))
    return out
