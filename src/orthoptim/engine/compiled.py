"""``compile=True``: the step of a block by torch.compile; that of tiny matrices in one pass over memory.

For tiny matrices base optimizer, leap and landing become a single loop, which reads each entry once and writes it in
place. For that every entry that changes must be a tensor of its own: a compiler turns stacking the results into a
second pass over memory, and a write through views of a common tensor into a loop for each. Batches of any size share
one graph.
"""

import itertools
from collections.abc import Callable, Hashable, MutableMapping
from functools import reduce
from types import FunctionType
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from orthoptim.base import State, per_matrix
from orthoptim.engine.plan import BlockTensors
from orthoptim.engine.rule import UpdateRule
from orthoptim.stiefel import Table, can_look
from orthoptim.stiefel.batches import TINY
from orthoptim.user_warnings import warn_user

T = TypeVar("T")
_numbers = itertools.count()

_FUSION_OPTIONS = {
    # The compiler would not vectorise a loop with so many strided reads (a factor of 3 here), nor fuse it in one piece.
    "cpp.enable_tiling_heuristics": False,
    "max_fusion_size": 1000,
    # What a graph depends on is the key it is kept under; to check twenty tensors again costs a tenth of the step.
    # torch.compile removes this entry from the dict it is given: each call gets a copy.
    "guard_filter_fn": lambda guards: [False] * len(guards),
    "size_asserts": False,
    "alignment_asserts": False,
}


class Graph(NamedTuple):
    """The compiled step of one block of tiny matrices, and the tensors that it overwrites."""

    run: "Compiled[Any]"
    tensors: tuple[Table, dict[str, Table], State]
    rule: UpdateRule
    grad_strides: tuple[int, ...]


class CompiledStep:
    """``BlockStep.compute``, compiled for each kind of block.

    Args:
        step: the :class:`BlockStep`.
    """

    def __init__(self, step: Any) -> None:
        self.step = step
        kinds = step.rule.kinds
        self._tables = [name for name, kind in kinds.items() if not per_matrix(kind)]
        self._columns = [name for name, kind in kinds.items() if per_matrix(kind)]
        self._compiled: dict[Hashable, Compiled[Any]] = {}
        self._graphs: MutableMapping[BlockTensors, Graph] = WeakKeyDictionary()

    def __call__(
        self, tensors: BlockTensors, x: Tensor, grad: Tensor, state: State, lr: Tensor
    ) -> tuple[Tensor, State]:
        """As ``BlockStep.compute``. Tiny matrices change in place."""
        largest = tensors.largest

        def plain() -> tuple[Tensor, State]:
            result: tuple[Tensor, State] = self.step.compute(x, grad, state, lr, largest)
            return result

        if self._fuses(x) and largest is None:
            return self._compute_fused(tensors, x, grad, state, lr, plain)
        key = (x.shape, x.dtype, x.device, largest)
        if key not in self._compiled:
            self._compiled[key] = Compiled(self.step.compute, dynamic=False)
        before = _total(state["rescued"]) if can_look(x) else None
        new_x, new_state = self._compiled[key](x, grad, state, lr, largest, otherwise=plain)
        rescued = new_state.get("rescued")  # None: the method rescues none
        if before is not None and rescued is not None and _total(rescued) != before:
            self.step.rescued = rescued > 0
        return new_x, new_state

    def _fuses(self, x: Tensor) -> bool:
        # A graph made for a single matrix would not serve more. Inside of a graph that the user compiles there is
        # nothing to write to.
        return (
            bool(self.step.rule.method.unrolls)
            and 1 < x.shape[-1] <= TINY
            and x.shape[0] > 1
            and not self.step.rule.base.whole_matrix
            and not torch.compiler.is_compiling()
        )

    def _compute_fused(
        self,
        tensors: BlockTensors,
        x: Tensor,
        grad: Tensor,
        state: State,
        lr: Tensor,
        otherwise: Callable[[], tuple[Tensor, State]],
    ) -> tuple[Tensor, State]:
        """X and the state, overwritten; where nothing can be compiled, what ``otherwise`` returns."""
        graph = self._graphs.get(tensors)
        if graph is None or graph.rule is not self.step.rule or graph.grad_strides != grad.stride():
            graph = self._graph(x, grad, state, lr)
            if tensors.in_place:
                self._graphs[tensors] = graph
        result = graph.run(*graph.tensors, grad, lr, otherwise=otherwise)
        if isinstance(result, tuple):
            return result
        if result is not None and can_look(x) and int(result) > 0:
            self.step.rescued = state["rescued"] > 0
        return x, state

    def _graph(self, x: Tensor, grad: Tensor, state: State, lr: Tensor) -> "Graph":
        """The graph that overwrites X and the state; compiled, unless there is one for blocks of this kind."""
        entries, tables = _entries(x), {name: _entries(state[name]) for name in self._tables}
        columns = {name: state[name].unsqueeze(1) for name in self._columns}
        rule = self.step.rule
        strides = [table[0][0].stride(0) for table in (entries, *tables.values())]  # from matrix to matrix
        dtypes = [column.dtype for column in columns.values()]  # a loaded state may count in another
        key = (x.shape[1:], x.dtype, x.device, grad.stride(), *strides, *dtypes, repr(rule.values))
        if key not in self._compiled:
            self._compiled[key] = Compiled(self._update_entries_, dynamic=False, options={**_FUSION_OPTIONS})
            # A graph traced on views would ask for the place of each in its storage in every call, by Python, which
            # took a tenth of the step. It is traced on copies, which are stepped and dropped.
            examples = tree_map(_copied_alone, (entries, tables, columns, grad))
            for a in tree_leaves(examples):
                torch._dynamo.mark_dynamic(a, 0)
            self._compiled[key](*examples, lr, otherwise=lambda: None)
        return Graph(self._compiled[key], (entries, tables, columns), rule, grad.stride())

    def _update_entries_(
        self, x: Table, tables: dict[str, Table], columns: State, grad: Tensor, lr: Tensor
    ) -> Tensor | None:
        """As ``BlockStep.compute``, entry by entry; how many were rescued, ``None`` by a method that rescues none."""
        rule, group = self.step.rule, self.step.group
        num_updates = columns["num_updates"] + 1
        t = num_updates.to(lr.dtype)
        ascent = [[-entry if group["maximize"] else entry for entry in row] for row in _entries(grad)]
        parts = [rule.base.statistic(entry.unsqueeze(1)) for row in ascent for entry in row]
        sums = [part for part in parts if part is not None]
        values = {name: column[:, 0] for name, column in columns.items()}
        scale, new_values = rule.base.scale(
            reduce(torch.add, sums) if sums else None, values, t[:, 0], **rule.hyperparameters
        )
        new_columns = {name: value.unsqueeze(1) for name, value in new_values.items()}
        g: Table = [[] for _ in ascent]
        new_tables: dict[str, Table] = {}
        for i, row in enumerate(ascent):
            for j, entry in enumerate(row):
                state = {name: table[i][j] for name, table in tables.items()}
                direction, advanced = rule.base.advance(entry, state, t, **rule.hyperparameters)
                g[i].append(direction if scale is None else direction * scale.unsqueeze(1))
                for name, value in advanced.items():
                    new_tables.setdefault(name, [[] for _ in ascent])[i].append(value)
        step = rule.method.update_entries(x, g, lr, group)
        finite = _finite(g) & _finite(step.table)
        if step.clipped is not None:
            new_columns["clipped"] = columns["clipped"] + step.clipped
        if step.rescued is not None:
            new_columns["rescued"] = columns["rescued"] + step.rescued
        new_columns["num_updates"] = num_updates
        for name, value in new_columns.items():
            columns[name].copy_(torch.where(finite, value, columns[name]))
        for name, table in new_tables.items():
            _write(finite, table, tables[name])
        _write(finite, step.table, x)
        return None if step.rescued is None else (step.rescued & finite).sum(dtype=torch.int32)


class Compiled(Generic[T]):
    """A function compiled for the kind of arguments it will be called with; where that fails, one warns and goes on.

    torch.compile counts the versions it makes of one code object, and gives up after eight. A code object of its own
    for each kind of block keeps these counts apart.

    Args:
        function: what to compile.
        **options: those of torch.compile.
    """

    def __init__(self, function: Callable[..., T], **options: Any) -> None:
        def call(*args: Any) -> T:
            return function(*args)

        code = call.__code__.replace(co_name=f"advance_{next(_numbers)}")
        fresh = FunctionType(code, call.__globals__, code.co_name, call.__defaults__, call.__closure__)
        self._fast: Callable[..., T] = torch.compile(fresh, fullgraph=True, **options)
        self._failed = False

    def __call__(self, *args: Any, otherwise: Callable[[], T]) -> T:
        """The compiled function of the arguments; where it could not be compiled, what ``otherwise`` returns."""
        if not self._failed:
            try:
                return self._fast(*args)
            except Exception as error:  # whatever a compiler may raise; what the function itself raises comes again
                self._failed = True
                result = otherwise()
                _warn_once(error)
                return result
        return otherwise()


_warned = False


def _warn_once(error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        reason = (str(error).strip().splitlines() or [""])[0]
        warn_user(f"compile=True: stepping without, as torch.compile failed: {reason}")


def _total(counter: Tensor) -> int:
    return int(counter.sum(dtype=torch.int32))  # by default it is copied to int64 first


def _copied_alone(a: Tensor) -> Tensor:
    """A copy with the same strides and a storage of its own."""
    return torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device).copy_(a)


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
