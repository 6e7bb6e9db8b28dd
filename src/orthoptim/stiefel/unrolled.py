"""The step of tiny matrices with every entry a vector of its own, along which the work runs.

A table is a matrix of vectors over the batch, ``table[i][j]`` of shape (B,) or (B, 1). Only the independent entries of
skew and Hermitian matrices are computed: a real 3×3 skew one has three. A compiler fuses all of it into one loop; in
eager mode it is bound by memory, so what is free is written to again.
"""

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel.policies import (
    Length,
    Policy,
    are_between,
    are_near,
    clip,
    half_factors,
    land,
    leap_square,
    rescue,
)

Table = list[list[Tensor]]
Upper = dict[tuple[int, int], Tensor]
"""Entries (i, j), i ≤ j, of a Hermitian matrix."""
Slots = tuple[Tensor | None, ...]


class Unrolled(NamedTuple):
    """What one step makes of each matrix: see :class:`orthoptim.stiefel.Update`."""

    table: Table
    clipped: Tensor | None
    rescued: Tensor | None
    probe: Tensor | None = None
    finite: bool = False


def unrolled(
    x: Table, g: Table, eta: Tensor, scale: Tensor | float, policy: Policy, new: Tensor | None = None
) -> Unrolled:
    """One POGO step.

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
    length = None
    if policy.clip is not None:
        length = clip(eta, _sum_of_squares([entry for row in r for entry in row]), p, policy)
    s = eta if length is None else length.s
    m = [[torch.addcmul(x[i][j], r[i][j], s, value=-1, out=wide[i * n + j]) for j in range(n)] for i in range(p)]
    minus = m[0][0].new_full((), -1.0)
    pairs = [(i, j) for i in range(p) for j in range(i, p)]
    c = {
        (i, j): _sum(_rows(m, i, j), minus if i == j else None, out=slot)
        for (i, j), slot in zip(pairs, square[: len(pairs)], strict=True)
    }
    q, weight, rescued, top = _land(c, p, policy, length)
    table = [
        [_sum([(_at(q, i, k), m[k][j]) for k in range(p)], m[i][j], results[i * n + j], weight) for j in range(n)]
        for i in range(p)
    ]
    shows = n > 1 or m[0][0].is_complex()  # the step of a real 1×1 matrix is nothing, whatever G is
    clipped = None if length is None else length.clipped
    return Unrolled(table, clipped, rescued, top if shows else None, shows and rescued is None)


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
            if i == j:
                entry.real.zero_()  # what rounding leaves there grows with G; of a real 1×1 matrix that is all
            else:
                s[j, i] = torch.neg(_conj(entry), out=next(slots))
    r: Table = []
    for i in rows:
        terms = [[(x[i][k], s[k, j]) for k in columns if (k, j) in s] for j in columns]
        r.append([_sum(pairs, out=wide[i * len(columns) + j]) for j, pairs in enumerate(terms)])
    return r


def _land(c: Upper, p: int, policy: Policy, length: Length | None) -> tuple[Upper, float, Tensor | None, Tensor | None]:
    """A :class:`orthoptim.stiefel.policies.Correction` with Q as a table, in the memory of C."""
    if not policy.half:
        entries = [_at(c, i, j).flatten() for i in range(p) for j in range(p)]
        lone = None
        if length is not None and length.clipped is not None:
            lone = Length(length.s.flatten(), length.clipped.flatten(), length.size.flatten())
        landing = land(torch.stack(entries, 1).reshape(-1, p, p), policy, lone)
        shape = c[0, 0].shape
        q = {(i, j): landing.q[:, i, j].reshape(shape) for i, j in c}
        flag = None if landing.rescued is None else landing.rescued.reshape(shape)
        return q, landing.weight, flag, None if policy.clip is None else landing.top
    diagonal = [c[i, i].real for i in range(p)]
    size = None
    if length is not None:
        size = _sum_of_squares(diagonal)
        if others := [entry for (i, j), entry in c.items() if i < j]:
            size.add_(_sum_of_squares(others), alpha=2)
        if are_near(size):
            return c, -0.5, None, None
    top = reduce(torch.maximum, diagonal)
    if size is None and are_between(top, policy):
        return c, -0.5, None, top
    rho, lands, flag = rescue(top, p, policy, size, None if length is None else leap_square(length))
    factor, shift = half_factors(rho, lands)
    q = {
        (i, j): torch.addcmul(shift, entry, factor, out=entry) if i == j else entry.mul_(factor)
        for (i, j), entry in c.items()
    }
    return q, -0.5, flag, top


def _sum_of_squares(entries: list[Tensor]) -> Tensor:
    """Σ|entry|²."""
    parts = [part for a in entries for part in ((a.real, a.imag) if a.is_complex() else (a,))]
    return _sum([(part, part) for part in parts])


def _rows(a: Table, i: int, j: int) -> list[tuple[Tensor, Tensor]]:
    """The terms of an entry of AAᴴ."""
    return [(u, _conj(v)) for u, v in zip(a[i], a[j], strict=True)]


def _at(a: Upper, i: int, j: int) -> Tensor:
    return a[i, j] if i <= j else _conj(a[j, i])


def _sum(
    pairs: list[tuple[Tensor, Tensor]], start: Tensor | None = None, out: Tensor | None = None, weight: float = 1
) -> Tensor:
    """The sum start + Σ weight·uv; without a start, of weight one."""
    (u, v), *others = pairs
    total = torch.mul(u, v, out=out) if start is None else torch.addcmul(start, u, v, value=weight, out=out)
    for u, v in others:
        total.addcmul_(u, v, value=weight)
    return total


def _conj(a: Tensor) -> Tensor:
    return a.conj() if a.is_complex() else a
