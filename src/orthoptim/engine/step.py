"""The step of one block: direction, update, mask."""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.base import Base, Direction, Kind, State, per_matrix
from orthoptim.engine.compiling import Compiled
from orthoptim.engine.fused import FusedStep, UpdateEntries, fuses
from orthoptim.pointwise import pointwise
from orthoptim.stiefel import can_look, is_deficient, max_entry
from orthoptim.stiefel.cost_model import is_gpu


class Update(NamedTuple):
    """What a method makes of one block.

    Attributes:
        x: the new matrices, (B, p, n).
        state: the new values of the buffers of the method.
        clipped: which matrices had their step shortened, (B,).
        rescued: which matrices were too far from the manifold to land as they were, (B,).
        finiteness_probe: a number per matrix that is finite only if all columns of X are, the same on every rank that
            holds some of them, (B,). ``None``: the engine adds up the entries of X, which over ranks takes one more
            all-reduce.
        covers_direction: whether the probe is finite only if the direction is, too.
        finite: whether it is known that the direction and X are finite.
    """

    x: Tensor
    state: State = {}  # noqa: RUF012  (a NamedTuple default; never changed)
    clipped: Tensor | None = None
    rescued: Tensor | None = None
    finiteness_probe: Tensor | None = None
    covers_direction: bool = False
    finite: bool = False

    def counts(self, finite: Tensor) -> State:
        """What to add to the counters of each matrix that takes the step."""
        flags = {"clipped": self.clipped, "rescued": self.rescued}
        return {"num_updates": finite, **{name: flag & finite for name, flag in flags.items() if flag is not None}}


class BlockStep:
    """Steps the blocks of one group.

    Args:
        update: that of whole matrices, see :meth:`Orthoptimizer.update_whole`.
        group: the options.
        hyperparameters: those of the base optimizer.
        kinds: what the state holds, by name.
        decomposes: whether ``update`` may raise on what is not finite.
        update_entries: that of the method, if it has one.
        gradient: what the base is given in the place of the gradient, see :meth:`Orthoptimizer.gradient`.

    Attributes:
        rescued: after a step, which matrices of the block were too far away; ``None`` where none was, or nobody has
            looked.
    """

    def __init__(
        self,
        update: Callable[..., Update],
        group: dict[str, Any],
        hyperparameters: Mapping[str, Any],
        kinds: Mapping[str, Kind],
        decomposes: bool,
        update_entries: UpdateEntries | None = None,
        gradient: Callable[..., Tensor] | None = None,
    ) -> None:
        self._compiled: dict[Hashable, Compiled[tuple[Tensor, State]]] = {}
        self.update = update
        self.group = group
        self.base = Base.named(group["base"])
        self.hyperparameters = hyperparameters
        self.kinds = kinds
        self.decomposes = decomposes
        self.gradient = gradient
        self.rescued: Tensor | None = None
        self._fused: FusedStep | None = None
        if update_entries is not None and group["compile"]:
            self._fused = FusedStep(update_entries, group, kinds)

    def __call__(
        self, x: Tensor, grad: Tensor, state: State, lr: Tensor, largest: float | None = None
    ) -> tuple[Tensor, State]:
        """``compute``, compiled where the options say so."""
        self.rescued = None
        # compilers do not fuse complex numbers
        compute = self._watch_compiled if self.group["compile"] and not x.is_complex() else self.compute
        return compute(x, grad, state, lr, largest)

    def _watch_compiled(
        self, x: Tensor, grad: Tensor, state: State, lr: Tensor, largest: float | None
    ) -> tuple[Tensor, State]:
        """``compute``, compiled; whether matrices were rescued is seen in their counters."""
        if not can_look(x):
            return self._compute_compiled(x, grad, state, lr, largest)
        before = int(state["rescued"].sum(dtype=torch.int32))  # by default it is copied to int64 first
        new_x, new_state = self._compute_compiled(x, grad, state, lr, largest)
        rescued = new_state.get("rescued")  # None: the method rescues none
        if rescued is not None and int(rescued.sum(dtype=torch.int32)) != before:
            self.rescued = rescued > 0
        return new_x, new_state

    def _compute_compiled(
        self, x: Tensor, grad: Tensor, state: State, lr: Tensor, largest: float | None
    ) -> tuple[Tensor, State]:
        """``compute``, compiled; tiny matrices change in place."""

        def plain() -> tuple[Tensor, State]:
            return self.compute(x, grad, state, lr, largest)

        if self._fused is not None and fuses(x, self.group) and largest is None:
            return self._fused(x, grad, state, lr, self.hyperparameters, plain)
        key = (x.shape, x.dtype, x.device, largest)
        if key not in self._compiled:
            self._compiled[key] = Compiled(self.compute, dynamic=False)
        return self._compiled[key](x, grad, state, lr, largest, otherwise=plain)

    def compute(
        self, x: Tensor, grad: Tensor, state: State, lr: Tensor, largest: float | None = None
    ) -> tuple[Tensor, State]:
        """New matrices and new state of one block; the state may be written to once all is computed.

        Args:
            x: the matrices.
            grad: their gradient.
            state: their state.
            lr: learning rate.
            largest: the largest entry that the parameters can hold, where that is less than X can.
        """
        t = _step_number(state["num_updates"], lr)
        ascent = -grad if self.group["maximize"] else grad
        if self.gradient is not None:
            ascent = self.gradient(x, ascent, self.group)
        direction, new_state = self.base.direction(x, ascent, state, t, **self.hyperparameters)
        del grad, ascent  # to have its memory back
        return self.descend(x, direction, new_state, state, t, lr, largest)

    def descend(
        self,
        x: Tensor,
        direction: Direction,
        new_state: State,
        state: State,
        t: Tensor,
        lr: Tensor,
        largest: float | None = None,
    ) -> tuple[Tensor, State]:
        """``compute`` from the direction on.

        Args:
            x: the matrices.
            direction: what the base made of their gradient.
            new_state: what it made of its buffers.
            state: their state.
            t: the number of this step of each matrix.
            lr: learning rate.
            largest: see :meth:`compute`.
        """
        if self.decomposes:  # decompositions raise on NaN
            g = direction.whole()
            total = g.sum((-2, -1))
            direction = Direction(where(torch.isfinite(total), g, torch.zeros((), dtype=g.dtype, device=g.device)))
        else:
            total = None
        update = self.update(x, direction, lr, state, t, self.group)
        new_state = {**new_state, **update.state}
        if update.finite and update.rescued is None and largest is None:
            return update.x, _count_all(state, update, new_state)
        probe = _probe(direction, update, total)
        del direction, t, total
        looks = can_look(x)
        far = update.rescued if looks and update.rescued is not None and bool(update.rescued.any()) else None
        if looks and far is None and largest is None and math.isfinite(_host(probe.sum())):
            return update.x, _count_all(state, update, new_state)
        if is_gpu(x.device.type) and largest is None and not torch.compiler.is_compiling():
            return self._keep_finite(x, update, state, new_state, probe)
        finite = probe - probe == 0  # isfinite takes four passes
        if largest is not None:
            finite = finite & (max_entry(update.x) <= largest)
        if far is not None:
            self.rescued = far
            finite = _freeze_deficient(x, far, finite)
        new_x = where(finite, update.x, x, out=update.x)
        kept: State = {}
        for name, value in new_state.items():
            # the memory of a buffer is written to, unless it is the new value of another buffer
            needed = any(other is state[name] for other in new_state.values())
            kept[name] = where(finite, value, state[name], out=None if needed else state[name])
        for name, more in update.counts(finite).items():
            kept[name] = _plus(state[name], more)
        return new_x, kept

    def _keep_finite(
        self, x: Tensor, update: Update, state: State, new_state: State, probe: Tensor
    ) -> tuple[Tensor, State]:
        """The end of :meth:`descend` on a GPU: numbers per matrix are masked and counted by a single kernel."""
        flags = {"clipped": update.clipped, "rescued": update.rescued}
        set_flags = {name: flag for name, flag in flags.items() if flag is not None}
        numbers = [name for name in new_state if per_matrix(self.kinds[name])]
        names = ["num_updates", *set_flags, *numbers]
        written = [state[name] for name in names]
        values = [*set_flags.values(), *(new_state[name] for name in numbers)]
        finite = torch.empty(probe.shape, dtype=torch.bool, device=probe.device)
        _masked.into([finite, *written], probe, *written, *values, flags=len(set_flags))
        kept = dict(zip(names, written, strict=True))
        entries = {name: value for name, value in new_state.items() if name not in numbers}
        for name, value in entries.items():
            needed = any(other is state[name] for other in entries.values())
            kept[name] = where(finite, value, state[name], out=None if needed else state[name])
        return where(finite, update.x, x, out=update.x), kept


@pointwise
def _step_number(taken: Tensor, lr: Tensor) -> Tensor:
    """The number of this step of each matrix, from 1."""
    return (taken + 1).to(lr.dtype)


@pointwise
def _masked(probe: Tensor, *numbers: Tensor, flags: int) -> tuple[Tensor, ...]:
    """Whether each matrix takes the step, its counters, and its other numbers.

    Args:
        probe: finite where it does.
        *numbers: ``num_updates``, counters, and numbers per matrix as they are; then a flag for each of the counters,
            and the new values of the numbers.
        flags: the number of flags.
    """
    held, new = numbers[: (len(numbers) + 1) // 2], numbers[(len(numbers) + 1) // 2 :]
    finite = probe - probe == 0
    counted = [held[0] + finite, *(held[i + 1] + (new[i] & finite) for i in range(flags))]
    kept = [torch.where(finite, value, old) for old, value in zip(held[flags + 1 :], new[flags:], strict=True)]
    return finite, *counted, *kept


def _count_all(state: State, update: Update, new_state: State) -> State:
    """The new state where all matrices take the step."""
    held = set(map(id, state.values()))  # which may be written to before it is read
    new = {name: value.clone() if id(value) in held else value for name, value in new_state.items()}
    new["num_updates"] = state["num_updates"].add_(1)
    if update.clipped is not None:
        new["clipped"] = state["clipped"].add_(update.clipped)
    return new


def _freeze_deficient(x: Tensor, rescued: Tensor, finite: Tensor) -> Tensor:
    """Freeze the matrices that are too far away and have no full rank: no landing brings them back.

    Only on a CPU, where to look at values waits for nobody; elsewhere they are counted as rescued in every step.
    """
    chosen = rescued.nonzero(as_tuple=True)
    return finite.index_put(chosen, finite[chosen] & ~is_deficient(x[chosen]))


def _probe(direction: Direction, update: Update, total: Tensor | None) -> Tensor:
    """A number per matrix that is finite only if the direction and the new point are.

    A sum is finite only if its terms are (or, beyond 1e38 in all, have left the range of float32 together).

    Args:
        direction: the direction.
        update: what the method made of it.
        total: the sum of the direction, if it is known.
    """
    if update.covers_direction and update.finiteness_probe is not None:
        return update.finiteness_probe
    if total is None:
        total = direction.matrices.sum((-2, -1))
        if direction.scale is not None:
            total = total * direction.scale
    return total + update.x.sum((-2, -1))


def _host(value: Tensor) -> float:
    """A number on the host; of a complex one the sum of its parts."""
    number: complex = value.item()
    return number.real + number.imag


def where(condition: Tensor, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The matrices a where the condition holds, else b; in the memory of ``out``, one of both."""
    condition = condition.reshape(-1, *[1] * (a.ndim - 1))
    if torch.compiler.is_compiling() or a.dtype != b.dtype:
        return torch.where(condition, a, b)
    if _widens(a) and _widens(b):
        wide = torch.complex128
        chosen = torch.where(condition, a.view(wide), b.view(wide), out=None if out is None else out.view(wide))
        return chosen.view(a.dtype) if out is None else out
    return torch.where(condition, a, b, out=out)


def _plus(counter: Tensor, more: Tensor) -> Tensor:
    return counter + more if torch.compiler.is_compiling() else counter.add_(more)


def _widens(a: Tensor) -> bool:
    """Whether matrices can be seen with entries of 16 bytes.

    On a CPU choosing goes entry by entry: of floats it costs four times an addition, of the widest entries once.
    """
    wide = 16 // a.itemsize
    return (
        a.ndim == 3
        and a.numel() > 0
        and a.device.type == "cpu"
        and a.is_contiguous()
        and a.shape[-1] % wide == 0
        and a.storage_offset() % wide == 0
        and all(step % wide == 0 for step in a.stride()[:-1])  # of a single matrix, or row, it may be anything
        and not a.is_conj()
    )
