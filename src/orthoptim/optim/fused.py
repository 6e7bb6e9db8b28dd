"""The step of tiny matrices in one pass over memory: what ``compile=True`` makes of them.

Base optimizer, leap and landing become a single loop, which reads each entry once and writes it in place. For that
every entry must be a tensor of its own: a compiler turns stacking the results into a second pass over memory, and a
write through views of a common tensor into a loop for each. Batches of any size share one graph.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from orthoptim.base import Base, Kind, State
from orthoptim.optim.compiling import Compiled
from orthoptim.stiefel.plan import TINY

# The compiler would not vectorise a loop with so many strided reads (a factor of 3 here), nor fuse it in one piece.
_OPTIONS = {"cpp.enable_tiling_heuristics": False, "max_fusion_size": 1000}

Entries = list[list[Tensor]]
UpdateEntries = Callable[[Entries, Entries, Tensor, Mapping[str, Any]], tuple[Entries, Tensor | None]]


class FusedStep:
    """Steps batches of one kind of tiny matrices in place.

    Args:
        update_entries: that of the method, see :meth:`Orthoptimizer.update_entries`.
        group: the options.
        kinds: what the state holds, by name.
    """

    def __init__(self, update_entries: UpdateEntries, group: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
        self.update_entries = update_entries
        self.group = group
        self.base = Base.named(group["base"])
        self.tables = [name for name, kind in kinds.items() if kind in ("entries", "moduli")]
        self.columns = [name for name, kind in kinds.items() if kind in ("matrices", "counters")]
        self._compiled = Compiled(self._advance_, dynamic=True, options=_OPTIONS)

    def __call__(
        self,
        x: Tensor,
        grad: Tensor,
        state: State,
        lr: Tensor,
        hyperparameters: Mapping[str, Any],
        otherwise: Callable[[], tuple[Tensor, State]],
    ) -> tuple[Tensor, State]:
        """X and the state, overwritten; where nothing can be compiled, what ``otherwise`` returns."""
        tables = {name: _entries(state[name]) for name in self.tables}
        columns = {name: state[name].unsqueeze(1) for name in self.columns}
        done = self._compiled(_entries(x), _entries(grad), tables, columns, lr, hyperparameters, otherwise=otherwise)
        return done or (x, state)

    def _advance_(
        self,
        x: Entries,
        grad: Entries,
        tables: dict[str, Entries],
        columns: State,
        lr: Tensor,
        hyperparameters: Mapping[str, Any],
    ) -> tuple[Tensor, State] | None:
        """As ``BlockStep.advance``, entry by entry."""
        p, n = len(x), len(x[0])
        taken = columns["taken"] + 1
        t = taken[:, 0].to(lr.dtype)
        ascent = [[-entry if self.group["maximize"] else entry for entry in row] for row in grad]
        parts = [self.base.statistic(entry.unsqueeze(1)) for row in ascent for entry in row]
        sums = [part for part in parts if part is not None]
        statistic = reduce(torch.add, sums) if sums else None
        own = {name: column[:, 0] for name, column in columns.items()}
        g: Entries = [[] for _ in range(p)]
        new_tables: dict[str, Entries] = {name: [[] for _ in range(p)] for name in tables}
        new_columns: State = {}
        for i in range(p):
            for j in range(n):
                held = {name: table[i][j].unsqueeze(1) for name, table in tables.items()}
                one, after = self.base.direction(
                    x[i][j].unsqueeze(1), ascent[i][j].unsqueeze(1), statistic, {**own, **held}, t, **hyperparameters
                )
                g[i].append(one.squeeze(1))
                for name, value in after.items():
                    if name in tables:
                        new_tables[name][i].append(value.squeeze(1))
                    else:
                        new_columns[name] = value.unsqueeze(1)  # the same for all entries
        new_x, clipped = self.update_entries(x, g, lr, self.group)
        finite = _finite(grad) & _finite(g) & _finite(new_x)
        if clipped is not None:
            new_columns["clipped"] = columns["clipped"] + clipped
        new_columns["taken"] = taken
        for name, value in new_columns.items():
            columns[name].copy_(torch.where(finite, value, columns[name]))
        for name, table in new_tables.items():
            _write(finite, table, tables[name])
        _write(finite, new_x, x)
        return None


def fuses(p: int, n: int, dtype: torch.dtype, group: Mapping[str, Any]) -> bool:
    """Whether matrices of this kind may be stepped so."""
    # inside of a graph that the user compiles there is nothing to write to; compilers do not fuse complex numbers
    return (
        bool(group["compile"])
        and 1 < n <= TINY
        and not dtype.is_complex
        and Base.named(group["base"]).entrywise
        and not torch.compiler.is_compiling()
    )


def _entries(a: Tensor) -> Entries:
    """(B, p, n) as p rows of n views (B, 1), whose last stride is 1 so that they are known not to overlap."""
    if a.stride(-1) != 1 and a.stride(-2) == 1:
        return [list(row) for row in zip(*_entries(a.mT), strict=True)]
    rows = [torch.split(row, 1, 1) for row in a.unbind(1)]
    return [[e if e.stride(1) == 1 else e[:, 0].unsqueeze(1) for e in row] for row in rows]


def _finite(table: Entries) -> Tensor:
    return torch.isfinite(reduce(torch.add, [entry for row in table for entry in row]))


def _write(mask: Tensor, table: Entries, target: Entries) -> None:
    for new_row, row in zip(table, target, strict=True):
        for new, entry in zip(new_row, row, strict=True):
            entry.copy_(torch.where(mask, new, entry))
