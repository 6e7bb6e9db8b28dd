"""The step of one block: gather, direction, update, and what is to be copied where, for the caller to do at once."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.base import Base, Kind, State
from orthoptim.optim.buckets import Block
from orthoptim.optim.compiling import Compiled
from orthoptim.optim.fused import FusedStep, UpdateEntries, fuses


class Update(NamedTuple):
    """What a method makes of one block.

    Attributes:
        x: the new matrices, (B, p, n).
        state: the new values of the method's own buffers.
        clipped: which matrices had their step shortened, (B,).
    """

    x: Tensor
    state: State = {}  # noqa: RUF012  (a NamedTuple default; never changed)
    clipped: Tensor | None = None


class BlockStep:
    """Steps the blocks of one group.

    Args:
        update: that of the method, see :meth:`Orthoptimizer.update`.
        group: the options.
        hyperparameters: those of the base optimizer.
        kinds: what the state holds, by name.
        decomposes: whether ``update`` may raise on what is not finite.
        update_entries: that of the method, if it has one.
    """

    def __init__(
        self,
        update: Callable[..., Update],
        group: Mapping[str, Any],
        hyperparameters: Mapping[str, Any],
        kinds: Mapping[str, Kind],
        decomposes: bool,
        update_entries: UpdateEntries | None = None,
    ) -> None:
        self._compiled: dict[tuple[torch.Size, torch.dtype, torch.device], Compiled[tuple[Tensor, State]]] = {}
        self._fused: dict[tuple[int, int, torch.dtype, torch.device], FusedStep] = {}
        self.update = update
        self.group = group
        self.base = Base.named(group["base"])
        self.hyperparameters = hyperparameters
        self.kinds = kinds
        self.per_matrix = {name for name, kind in kinds.items() if kind in ("matrices", "counters")}
        self.decomposes = decomposes
        self.update_entries = update_entries

    def __call__(
        self,
        block: Block,
        half: bool,
        lr: Tensor,
        params: list[Tensor],
        grads: list[Tensor],
        columns: dict[str, list[Tensor]],
    ) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Targets and sources of the copies that complete the step of this block."""
        mine = block.pick(params)
        held = {name: block.pick(column) for name, column in columns.items()}
        x = block.gather(mine).detach()
        if half:
            x = _newest(x, block.gather(held["master"]))
        state = {name: self._gather(block, name, held[name]) for name in self.kinds}
        grad = block.gather(block.pick(grads)).to(x.dtype)

        new_x, new_state = self._advance(x, grad, state, lr)

        copies = [(block.targets(mine), block.scatter(new_x))]
        if half:
            copies.append((block.targets(held["master"]), block.scatter(new_x)))
        for name, value in new_state.items():
            if name in self.per_matrix:
                copies.append((block.scalar_targets(held[name]), block.scatter_scalars(value)))
            else:
                copies.append((block.targets(held[name]), block.scatter(value)))
        return copies if new_x is not x else [pair for pair in copies if not _same_memory(*pair)]

    def _gather(self, block: Block, name: str, tensors: list[Tensor]) -> Tensor:
        return block.gather_scalars(tensors) if name in self.per_matrix else block.gather(tensors)

    def _advance(self, x: Tensor, grad: Tensor, state: State, lr: Tensor) -> tuple[Tensor, State]:
        """``advance``, compiled if asked for; tiny matrices then change in place."""
        if not self.group["compile"]:
            return self.advance(x, grad, state, lr)

        def plain() -> tuple[Tensor, State]:
            return self.advance(x, grad, state, lr)

        p, n = x.shape[1:]
        if self.update_entries is not None and fuses(p, n, x.dtype, self.group):
            kind = (p, n, x.dtype, x.device)
            if kind not in self._fused:
                self._fused[kind] = FusedStep(self.update_entries, self.group, self.kinds)
            return self._fused[kind](x, grad, state, lr, self.hyperparameters, plain)
        key = (x.shape, x.dtype, x.device)
        if key not in self._compiled:
            self._compiled[key] = Compiled(self.advance, dynamic=False)
        return self._compiled[key](x, grad, state, lr, otherwise=plain)

    def advance(self, x: Tensor, grad: Tensor, state: State, lr: Tensor) -> tuple[Tensor, State]:
        """New matrices and new state of one block; pure."""
        taken = state["taken"] + 1
        t = taken.to(lr.dtype)
        ascent = -grad if self.group["maximize"] else grad
        g, new_state = self.base.direction(x, ascent, self.base.statistic(ascent), state, t, **self.hyperparameters)
        # a sum is finite only if its terms are (or, beyond 1e38 in all, have left the range of float32 together)
        finite = torch.isfinite(grad.sum((-2, -1)))
        if g is not grad:
            finite = finite & torch.isfinite(g.sum((-2, -1)))
        if self.decomposes:  # decompositions raise on NaN
            g = _where(finite, g, torch.zeros((), dtype=g.dtype, device=g.device))
        update = self.update(x, g, lr, state, t, self.group)
        finite = finite & torch.isfinite(update.x.sum((-2, -1)))
        new_state = {**new_state, **update.state, "taken": taken}
        if update.clipped is not None:
            new_state["clipped"] = state["clipped"] + update.clipped
        kept = {name: _where(finite, value, state[name]) for name, value in new_state.items()}
        return _where(finite, update.x, x), kept


def _newest(x: Tensor, master: Tensor) -> Tensor:
    """The master copy of each matrix, or the parameter itself where somebody has written to it since."""
    untouched = (master.to(x.dtype) == x).all(-1).all(-1)
    return _where(untouched, master, x.to(master.dtype))


def copy_all_(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, with few kernel launches."""
    # foreach does not write through lazily conjugated views: write the conjugate into the memory behind them
    lazy = [t.is_complex() and t.is_conj() for t in targets]
    sources = [s.conj().resolve_conj() if c else s for s, c in zip(sources, lazy, strict=True)]
    torch._foreach_copy_([t.conj() if c else t for t, c in zip(targets, lazy, strict=True)], sources)


def _same_memory(targets: list[Tensor], sources: list[Tensor]) -> bool:
    """Whether the one tensor there is has been changed in place."""
    return len(targets) == 1 and targets[0].data_ptr() == sources[0].data_ptr()


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)
