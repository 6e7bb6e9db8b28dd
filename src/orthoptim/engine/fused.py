"""The step of tiny matrices in one pass over memory: what ``compile=True`` makes of them.

Base optimizer, leap and landing become a single loop, which reads each entry once and writes it in place. For that
every entry that changes must be a tensor of its own: a compiler turns stacking the results into a second pass over
memory, and a write through views of a common tensor into a loop for each. Batches of any size share one graph.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from orthoptim.base import Base, Kind, State, per_matrix
from orthoptim.engine.compiling import Compiled
from orthoptim.stiefel import Table, Unrolled
from orthoptim.stiefel.cost_model import TINY

_OPTIONS = {
    # The compiler would not vectorise a loop with so many strided reads (a factor of 3 here), nor fuse it in one piece.
    "cpp.enable_tiling_heuristics": False,
    "max_fusion_size": 1000,
    # What a graph depends on is the key it is kept under; to check twenty tensors again costs a tenth of the step.
    "guard_filter_fn": lambda guards: [False] * len(guards),
    "size_asserts": False,
    "alignment_asserts": False,
}

UpdateEntries = Callable[[Table, Table, Tensor, Mapping[str, Any]], Unrolled]


class FusedStep:
    """Steps batches of tiny matrices in place.

    Args:
        update_entries: that of the method, see :meth:`Orthoptimizer.update_entries`.
        group: the options.
        kinds: what the state holds, by name.
    """

    def __init__(self, update_entries: UpdateEntries, group: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
        self.update_entries = update_entries
        self.group = group
        self.base = Base.named(group["base"])
        self.tables = [name for name, kind in kinds.items() if not per_matrix(kind)]
        self.columns = [name for name, kind in kinds.items() if per_matrix(kind)]
        self._compiled: dict[Hashable, Compiled[tuple[Tensor, State] | None]] = {}

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
        entries, tables = _entries(x), {name: _entries(state[name]) for name in self.tables}
        columns = {name: state[name].unsqueeze(1) for name in self.columns}
        options = [value for name, value in self.group.items() if name not in ("params", "param_names", "lr")]
        steps = [table[0][0].stride(0) for table in (entries, *tables.values())]  # in memory, from matrix to matrix
        dtypes = [column.dtype for column in columns.values()]  # a loaded state may count in another
        key = (x.shape[1:], x.dtype, x.device, grad.stride(), *steps, *dtypes, repr(options))
        if key not in self._compiled:
            self._compiled[key] = Compiled(self._compute_, dynamic=False, options=_OPTIONS)
            for a in tree_leaves((entries, grad, tables, columns)):
                torch._dynamo.mark_dynamic(a, 0)
        run = self._compiled[key]
        return run(entries, grad, tables, columns, lr, hyperparameters, otherwise=otherwise) or (x, state)

    def _compute_(
        self,
        x: Table,
        grad: Tensor,
        tables: dict[str, Table],
        columns: State,
        lr: Tensor,
        hyperparameters: Mapping[str, Any],
    ) -> tuple[Tensor, State] | None:
        """As ``BlockStep.compute``, entry by entry."""
        taken = columns["num_updates"] + 1
        t = taken.to(lr.dtype)
        ascent = [[-entry if self.group["maximize"] else entry for entry in row] for row in _entries(grad)]
        parts = [self.base.statistic(entry.unsqueeze(1)) for row in ascent for entry in row]
        sums = [part for part in parts if part is not None]
        per_matrix = {name: column[:, 0] for name, column in columns.items()}
        scale, fresh = self.base.scale(
            reduce(torch.add, sums) if sums else None, per_matrix, t[:, 0], **hyperparameters
        )
        new_columns = {name: value.unsqueeze(1) for name, value in fresh.items()}
        g: Table = [[] for _ in ascent]
        new_tables: dict[str, Table] = {}
        for i, row in enumerate(ascent):
            for j, entry in enumerate(row):
                held = {name: table[i][j] for name, table in tables.items()}
                direction, advanced = self.base.advance(entry, held, t, **hyperparameters)
                g[i].append(direction if scale is None else direction * scale.unsqueeze(1))
                for name, value in advanced.items():
                    new_tables.setdefault(name, [[] for _ in ascent])[i].append(value)
        step = self.update_entries(x, g, lr, self.group)
        finite = _finite(g) & _finite(step.table)
        if step.clipped is not None:
            new_columns["clipped"] = columns["clipped"] + step.clipped
        if step.rescued is not None:
            new_columns["rescued"] = columns["rescued"] + step.rescued
        new_columns["num_updates"] = taken
        for name, value in new_columns.items():
            columns[name].copy_(torch.where(finite, value, columns[name]))
        for name, table in new_tables.items():
            _write(finite, table, tables[name])
        _write(finite, step.table, x)
        return None


def fuses(x: Tensor, group: Mapping[str, Any]) -> bool:
    """Whether a batch may be stepped so."""
    # A graph made for a single matrix would not serve more. Inside of a graph that the user compiles there is nothing
    # to write to; compilers do not fuse complex numbers.
    return (
        bool(group["compile"])
        and 1 < x.shape[-1] <= TINY
        and x.shape[0] > 1
        and not x.is_complex()
        and not Base.named(group["base"]).whole_matrix
        and not torch.compiler.is_compiling()
    )


def _entries(a: Tensor) -> Table:
    """(B, p, n) as p rows of n views (B, 1), whose last stride is 1 so that they are known not to overlap."""
    p, n = a.shape[1:]
    if a.is_contiguous():
        entries = a.flatten(1).chunk(p * n, 1)
    elif a.mT.is_contiguous():
        return [list(row) for row in zip(*_entries(a.mT), strict=True)]
    else:
        entries = tuple(entry.unsqueeze(1) for row in a.unbind(1) for entry in row.unbind(1))
    return [list(entries[i * n : (i + 1) * n]) for i in range(p)]


def _finite(table: Table) -> Tensor:
    return torch.isfinite(reduce(torch.add, [entry for row in table for entry in row]))


def _write(mask: Tensor, table: Table, target: Table) -> None:
    for new_row, row in zip(table, target, strict=True):
        for new, entry in zip(new_row, row, strict=True):
            entry.copy_(torch.where(mask, new, entry))
