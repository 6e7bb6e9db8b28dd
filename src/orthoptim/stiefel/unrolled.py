"""The step of tiny matrices with every entry a vector of its own, along which the work runs.

A table is a matrix of vectors over the batch, ``table[i][j]`` of shape (B,) or (B, 1). Of skew and Hermitian matrices
only the independent entries are computed: a real 3×3 skew one has three. A compiler fuses all of it into one loop; in
eager mode it is bound by memory, so what is free is written to again.
"""

import torch
from torch import Tensor

from orthoptim.stiefel.landing import Policy, clip_length

Table = list[list[Tensor]]
Upper = dict[tuple[int, int], Tensor]
"""Entries (i, j), i ≤ j, of a Hermitian matrix."""
Slots = tuple[Tensor | None, ...]


def unrolled(
    x: Table, g: Table, eta: Tensor, scale: Tensor | float, policy: Policy, new: Tensor | None = None
) -> tuple[Table, Tensor | None]:
    """One POGO step: the new table, and which matrices had their leap clipped.

    Args:
        x: the matrices, p rows of n entries.
        g: direction.
        eta: η, of each matrix or of all.
        scale: a factor of G.
        policy: how to land.
        new: where to write the new matrices, (p, n, B). ``None``: a compiler plans memory by itself.
    """
    p, n = len(x), len(x[0])
    wide, square, results = _slots(new, p, n)
    r = _relative_gradient(x, g, 0.5 * scale, wide, square)
    upper = [(i, j) for i in range(p) for j in range(i, p)]
    e = {(i, j): _sum(_rows(r, i, j), out=slot) for (i, j), slot in zip(upper, square, strict=False)}
    length, clipped = eta, None
    if policy.clip is not None:
        length = clip_length(_square_norm(e).sqrt_(), eta, policy)
        clipped = length < eta
    m = [[torch.addcmul(x[i][j], r[i][j], length, value=-1, out=wide[i * n + j]) for j in range(n)] for i in range(p)]
    c = _plus_gram_(e, length, x)
    # Q = −½C need not be formed
    q, factor = (c, -0.5) if policy.half else (_correction(c, policy), 1.0)
    table = [
        [_sum([(_at(q, i, k), m[k][j]) for k in range(p)], m[i][j], factor, results[i * n + j]) for j in range(n)]
        for i in range(p)
    ]
    return table, clipped


def _slots(new: Tensor | None, p: int, n: int) -> tuple[Slots, Slots, Slots]:
    """Vectors to write to: for R and then M, for S and then RRᴴ, and for the result."""
    if new is None:
        return (None,) * (p * n), (None,) * (n * n), (None,) * (p * n)
    entries = n * n if _has_diagonal(new, n) else n * (n - 1)
    room = new.new_empty(p * n + max(entries, p * (p + 1) // 2), new.shape[-1]).unbind(0)
    return room[: p * n], room[p * n :], new.flatten(0, 1).unbind(0)


def _has_diagonal(a: Tensor, n: int) -> bool:
    """Whether that of S = Skew(XᴴG) is needed: of a real one it is zero, and n = 1 has nothing else."""
    return a.is_complex() or n == 1


def _relative_gradient(x: Table, g: Table, half: Tensor | float, wide: Slots, square: Slots) -> Table:
    """X·Skew(XᴴG)."""
    rows, columns = range(len(x)), range(len(x[0]))
    first = 0 if _has_diagonal(x[0][0], len(columns)) else 1
    slots = iter(square)
    s: dict[tuple[int, int], Tensor] = {}
    for i in columns:
        for j in range(i + first, len(columns)):
            entry = _sum([(_conj(x[k][i]), g[k][j]) for k in rows], out=next(slots))
            for k in rows:
                entry.addcmul_(_conj(g[k][i]), x[k][j], value=-1)
            s[i, j] = entry.mul_(half)
            if i == j and entry.is_complex():
                entry.real.zero_()  # what rounding leaves there grows with G
            elif i < j:
                s[j, i] = torch.neg(_conj(entry), out=next(slots))
    r: Table = []
    for i in rows:
        terms = [[(x[i][k], s[k, j]) for k in columns if (k, j) in s] for j in columns]
        r.append([_sum(pairs, out=wide[i * len(columns) + j]) for j, pairs in enumerate(terms)])
    return r


def _plus_gram_(e: Upper, length: Tensor, x: Table) -> Upper:
    """C = s²RRᴴ + XXᴴ − I, in the memory of RRᴴ."""
    square = length * length
    for (i, j), entry in e.items():
        entry.mul_(square)
        for u, v in _rows(x, i, j):
            entry.addcmul_(u, v)
        if i == j:
            entry.sub_(1)
    return e


def _square_norm(a: Upper) -> Tensor:
    """‖A‖_F²."""
    total: Tensor | None = None
    for (i, j), entry in a.items():
        for part in (entry.real, entry.imag) if entry.is_complex() else (entry,):
            if total is None:  # the first is on the diagonal
                total = part * part
            else:
                total.addcmul_(part, part, value=1 if i == j else 2)
    assert total is not None
    return total


def _correction(c: Upper, policy: Policy) -> Upper:
    """Q(C)."""
    p = max(j for _, j in c) + 1
    entries = [_at(c, i, j).flatten() for i in range(p) for j in range(p)]
    q = policy.correction(torch.stack(entries, 1).reshape(-1, p, p))
    return {(i, j): q[:, i, j].reshape(entry.shape) for (i, j), entry in c.items()}


def _rows(a: Table, i: int, j: int) -> list[tuple[Tensor, Tensor]]:
    """The terms of an entry of AAᴴ."""
    return [(u, _conj(v)) for u, v in zip(a[i], a[j], strict=True)]


def _at(a: Upper, i: int, j: int) -> Tensor:
    return a[i, j] if i <= j else _conj(a[j, i])


def _sum(
    pairs: list[tuple[Tensor, Tensor]], start: Tensor | None = None, factor: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """The sum start + factor·Σ uv."""
    (u, v), *others = pairs
    total = torch.mul(u, v, out=out) if start is None else torch.addcmul(start, u, v, value=factor, out=out)
    for u, v in others:
        total.addcmul_(u, v, value=factor)
    return total


def _conj(a: Tensor) -> Tensor:
    return a.conj() if a.is_complex() else a
