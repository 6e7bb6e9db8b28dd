"""The step of tiny matrices with every entry an expression of its own, for a compiler to fuse into one loop.

A table is a matrix of vectors over the batch, ``table[i][j]`` of shape (B, 1). Of skew and Hermitian tables only the
independent entries are computed: a 3×3 skew one has three.
"""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from orthoptim.stiefel.landing import Policy, clip_length

Table = list[list[Tensor]]


def unrolled(x: Table, g: Table, lr: Tensor, policy: Policy, normalized: bool) -> tuple[Table, Tensor | None]:
    """One POGO step of real matrices: the new table, and which matrices had their leap clipped.

    Args:
        x: the matrices, p rows of n > 1 entries.
        g: direction.
        lr: η.
        policy: how to land.
        normalized: whether ‖G‖_F is of order one; otherwise G is scaled by its largest entry, as in ``pogo_step``.
    """
    rows, columns = range(len(x)), range(len(x[0]))
    eta, half = lr, torch.full((), 0.5, dtype=lr.dtype, device=lr.device)
    if policy.clip is not None and not normalized:
        size = reduce(torch.maximum, [entry.abs() for row in g for entry in row])
        size = size.clamp_min(torch.finfo(size.dtype).tiny)
        eta, half = lr * size, 0.5 / size

    xt, gt = _transposed(x), _transposed(g)
    s = _mirrored(lambda i, j: half * (_dot(xt[i], gt[j]) - _dot(gt[i], xt[j])), len(columns), -1)
    others = [[k for k in columns if k != j] for j in columns]
    r = [[_dot([x[i][k] for k in others[j]], [s[k, j] for k in others[j]]) for j in columns] for i in rows]
    a = _mirrored(lambda i, j: _dot(x[i], x[j]), len(rows), 1)
    e = _mirrored(lambda i, j: _dot(r[i], r[j]), len(rows), 1)

    clipped = None
    length = eta
    if policy.clip is not None:
        square = reduce(torch.add, [e[i, j].square() for i in rows for j in rows])
        length = clip_length(square.sqrt(), eta, policy)
        clipped = length < eta
    m = [[x[i][j] - length * r[i][j] for j in columns] for i in rows]
    c = {(i, j): a[i, j] + length.square() * e[i, j] for i in rows for j in rows if i <= j}
    c.update({(i, i): c[i, i] - 1 for i in rows})
    if policy.half:
        q = {place: -0.5 * entry for place, entry in c.items()}
    else:
        entries = [c[min(i, j), max(i, j)] for i in rows for j in rows]
        corrected = policy.correction(torch.stack(entries, 1).reshape(-1, len(rows), len(rows)))
        q = {(i, j): corrected[:, i, j, None] for i in rows for j in rows if i <= j}
    mt = _transposed(m)
    new = [[m[i][j] + _dot([q[min(i, k), max(i, k)] for k in rows], mt[j]) for j in columns] for i in rows]
    return new, clipped


def _dot(a: list[Tensor], b: list[Tensor]) -> Tensor:
    return reduce(torch.add, [u * v for u, v in zip(a, b, strict=True)])


def _transposed(a: Table) -> Table:
    return [list(column) for column in zip(*a, strict=True)]


def _mirrored(upper: Callable[[int, int], Tensor], size: int, sign: int) -> dict[tuple[int, int], Tensor]:
    """A Hermitian (sign 1) or skew (sign −1) table from the part above its diagonal, which is left out if skew."""
    places = [(i, j) for i in range(size) for j in range(i if sign > 0 else i + 1, size)]
    entries = {place: upper(*place) for place in places}
    return {**{(j, i): -entry if sign < 0 else entry for (i, j), entry in entries.items()}, **entries}
