"""The step of tiny matrices with every entry a vector of its own, along which the work runs.

A table is a matrix of vectors over the batch, ``table[i][j]`` of shape (B,) or (B, 1). Only the independent entries of
skew and Hermitian matrices are computed: a real 3×3 skew one has three. A compiler fuses all of it into one loop; in
eager mode it is bound by memory, so what is free is written to again.
"""

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel.geometry import can_look
from orthoptim.stiefel.policies import Policy, clip, half_factors, is_far, land, rescue

Table = list[list[Tensor]]
Upper = dict[tuple[int, int], Tensor]
"""Entries (i, j), i ≤ j, of a Hermitian matrix."""
Slots = tuple[Tensor | None, ...]


class Unrolled(NamedTuple):
    """What one step makes of each matrix: see :class:`orthoptim.stiefel.Step`."""

    table: Table
    clipped: Tensor | None
    rescued: Tensor
    ordinary: bool = False
    probe: Tensor | None = None


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
    length, clipped, leap = eta, None, None
    if policy.clip is not None:
        length, clipped, leap = clip(eta, _sum_of_squares([entry for row in r for entry in row]), p, policy)
    m = [[torch.addcmul(x[i][j], r[i][j], length, value=-1, out=wide[i * n + j]) for j in range(n)] for i in range(p)]
    minus = m[0][0].new_full((), -1.0)
    pairs = [(i, j) for i in range(p) for j in range(i, p)]
    c = {
        (i, j): _sum(_rows(m, i, j), minus if i == j else None, out=slot)
        for (i, j), slot in zip(pairs, square[: len(pairs)], strict=True)
    }
    q, weight, rescued, ordinary, top = _land(c, p, policy, leap)
    table = [
        [_sum([(_at(q, i, k), m[k][j]) for k in range(p)], m[i][j], results[i * n + j], weight) for j in range(n)]
        for i in range(p)
    ]
    # of a real 1×1 matrix the step is nothing, whatever G is
    probe = top if n > 1 or m[0][0].is_complex() else None
    return Unrolled(table, clipped, rescued, ordinary, probe)


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


def _land(c: Upper, p: int, policy: Policy, leap: Tensor | None) -> tuple[Upper, float, Tensor, bool, Tensor | None]:
    """A :class:`orthoptim.stiefel.policies.Correction` with Q as a table, in the memory of C."""
    if not policy.half:
        entries = [_at(c, i, j).flatten() for i in range(p) for j in range(p)]
        lone = None if leap is None else leap.flatten()
        landing = land(torch.stack(entries, 1).reshape(-1, p, p), policy, lone)
        shape = c[0, 0].shape
        q = {(i, j): landing.q[:, i, j].reshape(shape) for i, j in c}
        probe = None if policy.clip is None else landing.top
        return q, landing.weight, landing.rescued.reshape(shape), landing.ordinary, probe
    diagonal = [c[i, i].real for i in range(p)]
    size = None
    if leap is not None:
        size = _sum_of_squares(diagonal)
        if others := [entry for (i, j), entry in c.items() if i < j]:
            size.add_(_sum_of_squares(others), alpha=2)
    top = reduce(torch.maximum, diagonal)
    if can_look(top):
        flag = is_far(top, policy, size, leap)
        if not bool(flag.any()):
            return c, -0.5, flag, True, top
    rho, lands, flag = rescue(top, p, policy, size, leap)
    factor, shift = half_factors(rho, lands)
    q = {
        (i, j): torch.addcmul(shift, entry, factor, out=entry) if i == j else entry.mul_(factor)
        for (i, j), entry in c.items()
    }
    return q, 1.0, flag, False, top


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
