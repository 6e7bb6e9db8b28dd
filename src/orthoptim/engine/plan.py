"""The plan of the matrices that are whole on this device: what a step works on, and whether that still serves.

A plan keeps buckets, blocks, and views of the memory of parameters and states. It is made in
:mod:`orthoptim.engine.buckets`, executed by every step, shown by ``opt.plan()``, and made again when something it was
made from has changed.

A block is the tensors of several parameters as one batch of matrices (B, p, n). Where tensors lie in memory decides
what must be copied: neighbours are one batch as they are, and what would make BLAS round otherwise (gaps, a start that
is not aligned) is copied first.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import chain, compress
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from orthoptim import pointwise
from orthoptim.engine.moves import gathered, scatter_
from orthoptim.engine.rule import UpdateRule
from orthoptim.parts import Part
from orthoptim.stiefel.batches import by_columns, is_gpu
from orthoptim.tensors import are_plain, has_values

_ALIGNMENT = 64
"""Bytes: torch allocates so on a CPU."""

Parts = Sequence[tuple[int, Part]] | None
"""The parts that a view divides parameters into, each with the place of its parameter; ``None``: it divides none."""


class Block(NamedTuple):
    """Parameters, or the matrices ``start`` to ``stop`` of a single one, as one batch."""

    members: list[int]  # places in the list of parameters
    matrices: int
    rows: int
    columns: int
    transposed: bool
    batch_last: bool  # in memory
    part: tuple[int, int] | None = None  # (start, stop)
    mixed: bool = False  # whether the parameters have several shapes
    scale: float = 1.0  # σ: the parameters hold σ times the matrices

    def pick(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The members' among tensors that belong to all parameters."""
        return [tensors[i] for i in self.members]

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the members' shapes as (B, p, n); a single one is viewed, not copied, where strides allow.

        Tiny matrices are copied, unless they lie so already.
        """
        matrices = self._joined(tensors).resolve_conj().reshape(-1, self.rows, self.columns)
        if self.part is not None:
            matrices = matrices[self.part[0] : self.part[1]]
        batch = len(matrices)
        # entry by entry, which is three times as fast as a copy of the transposed view
        if self.batch_last and (batch == 1 or matrices.stride(0) != 1):
            entries = torch.stack(matrices.flatten(1).unbind(1))
            matrices = entries.view(self.rows, self.columns, batch).permute(2, 0, 1)
        return matrices.mT if self.transposed else matrices

    def write_(self, tensors: list[Tensor], matrices: Tensor) -> None:
        """The inverse of :meth:`gather`: write matrices to the tensors they belong to."""
        if self.transposed:
            matrices = matrices.mT
            if len(tensors) > 1 and is_gpu(matrices.device.type):  # which copies tensors of other strides one by one
                matrices = matrices.contiguous()
        if self.part is not None:
            tensors = [tensors[0].view(-1, self.rows, self.columns)[self.part[0] : self.part[1]]]
        if _same_memory(tensors, matrices):
            return
        if self.batch_last:
            entries = matrices.permute(1, 2, 0).flatten(0, 1).unbind(0)
            alone = tensors[0] if len(tensors) == 1 and tensors[0].is_contiguous() else None
            if alone is not None and alone.dtype == matrices.dtype:
                torch.stack(entries, 1, out=alone.view(-1, self.rows * self.columns))
                return
            matrices = torch.stack(entries, 1)
        scatters = not self.mixed and matrices.device.type in pointwise.DEVICES
        if not scatters or not scatter_(tensors, matrices):
            copy_all_(tensors, self._pieces(tensors, matrices))

    def gather_scalars(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the members' batch shapes as (B,)."""
        values = self._joined(tensors).reshape(-1)
        return values if self.part is None else values[self.part[0] : self.part[1]]

    def write_scalars_(self, tensors: list[Tensor], values: Tensor) -> None:
        """The inverse of :meth:`gather_scalars`."""
        if self.part is not None:
            tensors = [tensors[0].view(-1)[self.part[0] : self.part[1]]]
        if _same_memory(tensors, values):
            return
        copy_all_(tensors, self._pieces(tensors, values))

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        if len(tensors) == 1:
            return without_gaps(tensors[0])
        # stacking a thousand tensors is one call, flattening them a thousand
        return torch.cat([each.reshape(-1) for each in tensors]) if self.mixed else stacked(tensors)

    def _pieces(self, tensors: Sequence[Tensor], joined: Tensor) -> list[Tensor]:
        if not self.mixed:
            return list(joined.reshape(-1, *tensors[0].shape).unbind(0))
        pieces = torch.split(joined.reshape(-1), [each.numel() for each in tensors])
        return [piece.view(each.shape) for piece, each in zip(pieces, tensors, strict=True)]


class Bucket(NamedTuple):
    """Matrices of one shape, dtype and device that are whole on this device.

    Attributes:
        p: rows, the shorter side.
        n: columns.
        dtype: what is computed in.
        real_dtype: that of its real part.
        half: whether the parameters are stored in less.
        device: where.
        members: positions in the list of parameters.
        counts: for each member, how many matrices it holds.
        blocks: what is worked on at a time.
        group: index of the param group.
        names: those of the members.
        form: the form of the step.
        kernel: what steps all of it at once, in the place of the blocks.
        strategy: what travels between ranks: nothing.
    """

    p: int
    n: int
    dtype: torch.dtype
    real_dtype: torch.dtype
    half: bool
    device: torch.device
    members: list[int]
    counts: list[int]
    blocks: list[Block]
    group: int = 0
    names: tuple[str, ...] = ()
    form: str = ""
    kernel: Callable[..., None] | None = None
    strategy: str = "local"


class BlockTensors:
    """The parameters and states of one block.

    Args:
        block: the block.
        members: its tensors by name; the parameters themselves are ``"param"``. Neighbours are one tensor.
        steps: counters of the steps, of the parameters that begin in this block.
        values: the names of those with a value for each matrix.
        half: whether the parameters have a master copy.

    Attributes:
        largest: the largest entry that the parameters can hold, where that is less than is computed in.
        in_place: whether a step computes with the parameters and states themselves, not with copies.
    """

    def __init__(
        self, block: Block, members: Mapping[str, list[Tensor]], steps: list[Tensor], values: set[str], half: bool
    ) -> None:
        self.block, self.members, self.steps, self.half, self._per_matrix = block, members, steps, half, values
        first = members["param"][0]
        self.largest = torch.finfo(torch.float16).max / block.scale if first.dtype == torch.float16 else None
        keeps = not torch.compiler.is_compiling() and has_address(first)
        self._views = {name: self._view(name) for name in members} if keeps else {}
        self.in_place = bool(self._views) and None not in self._views.values() and not half and block.scale == 1
        alone = len(block.members) == 1 and not (block.transposed or block.batch_last or first.is_complex())
        self._alone = block.members[0] if alone and block.scale == 1 and block.part is None else None

    def _view(self, name: str) -> Tensor | None:
        """The matrices where they lie; ``None``: they must be copied."""
        first, gathered = self.members[name][0], self._gather(name)
        return gathered if first.untyped_storage().data_ptr() == gathered.untyped_storage().data_ptr() else None

    def _gather(self, name: str) -> Tensor:
        listed = self.members[name]
        return self.block.gather_scalars(listed) if name in self._per_matrix else self.block.gather(listed)

    def gather(self, name: str) -> Tensor:
        """The matrices (B, p, n), or a value for each (B,)."""
        view = self._views.get(name)
        return self._gather(name) if view is None else view

    def gather_state(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The same of several names; where all lie in place, without a call for each."""
        views: Any = self._views if self.in_place else None
        return {name: self.gather(name) if views is None else views[name] for name in names}

    def gather_grads(self, grads: list[Tensor], dtype: torch.dtype) -> Tensor:
        """The gradients of the block among those of all parameters, (B, p, n), with respect to X/σ."""
        if self._alone is not None:  # one parameter, mostly seen as it is: the general way takes a dozen calls
            grad = without_gaps(grads[self._alone])
            if grad.dtype is dtype and grad.is_contiguous():
                return grad.view(-1, self.block.rows, self.block.columns)
        gathered = self.block.gather(self.block.pick(grads)).to(dtype)
        return gathered if self.block.scale == 1 else gathered * self.block.scale

    def write_(self, name: str, value: Tensor) -> None:
        """The inverse of :meth:`gather`."""
        view = self._views.get(name)
        if value is view:
            return
        if view is not None:
            view.copy_(value)
        elif name in self._per_matrix:
            self.block.write_scalars_(self.members[name], value)
        else:
            self.block.write_(self.members[name], value)


@dataclass(eq=False)
class LocalPlan:
    """How the matrices of one param group that are whole on this device are stepped.

    Attributes:
        rule: how the group is updated; not kept.
        state: that of the optimizer; not kept.
        params: the parameters that step, plain tensors or the local parts of DTensors.
        states: their states, the tensors of one parameter after those of another; empty before the first step.
        parts: what the view divides the parameters into.
        members: the parameters, or their parts.
        columns: for each name of the state, its tensors for the members.
        steps: for each member, the counter of steps; ``None`` but for the first part of a parameter.
        buckets: what a step works through.
        blocks: for each bucket, the tensors of its blocks.
        owners: for each member, its parameter.
        devices: where they are.
    """

    rule: InitVar[UpdateRule]
    state: InitVar[Mapping[Tensor, dict[str, Tensor]]]
    params: list[Tensor]
    states: list[Tensor]
    parts: Parts
    members: list[Tensor]
    columns: Mapping[str, list[Tensor]]
    steps: list[Tensor | None]
    buckets: list[Bucket]
    blocks: list[list[BlockTensors]]
    _rates: dict[Hashable, tuple[float, Tensor]] = field(default_factory=dict, init=False)

    def __post_init__(self, rule: UpdateRule, state: Mapping[Tensor, dict[str, Tensor]]) -> None:
        self.owners = self.params if self.parts is None else [self.params[i] for i, _ in self.parts]
        self.devices = {bucket.device for bucket in self.buckets}
        if not torch.compiler.is_compiling():
            self._remember(rule, state)

    def lr(self, value: float | Tensor, bucket: Bucket) -> Tensor:
        """The learning rate as a 0-d tensor; that of the last step, if it is the same number."""
        if isinstance(value, Tensor):
            return value.to(dtype=bucket.real_dtype, device=bucket.device).reshape(())
        last = self._rates.get((bucket.real_dtype, bucket.device))
        if last is not None and last[0] == value:
            return last[1]
        tensor = torch.full((), value, dtype=bucket.real_dtype, device=bucket.device)
        if not torch.compiler.is_compiling():
            self._rates[bucket.real_dtype, bucket.device] = (value, tensor)
        return tensor

    def _remember(self, rule: UpdateRule, state: Mapping[Tensor, dict[str, Tensor]]) -> None:
        """Write down what the plan was made from, to tell whether it still serves."""
        self._options, self._state_kinds = rule.options, rule.kinds
        self._has_addresses = all(map(has_address, self.params))
        self._metadata, self._addresses = _metadata(self.params), self._addresses_of(self.params, self.states)
        self._group = list(rule.group["params"])
        self._is_plain = are_plain(self._group) and bool(self.states)
        if self._is_plain:
            steps = {id(param) for param in self.params}
            self._without_grad = [param.grad is None for param in self._group]
            self._stepping = None if len(steps) == len(self._group) else [id(param) in steps for param in self._group]
            self._states = [state[param] for param in self.params]
            self._names, self._entries = _keys(self._states), _values(self._states)

    def grads(self, rule: UpdateRule, state: Mapping[Tensor, Any]) -> list[Tensor] | None:
        """The gradients of its parameters; ``None`` where others step, or with other states: a new plan is needed."""
        if not self._is_plain or not same_tensors(self._group, rule.group["params"]):
            return None
        grads: list[Any] = [param.grad for param in self._group]
        if [grad is None for grad in grads] != self._without_grad:
            return None
        if self._stepping is not None:
            grads = list(compress(grads, self._stepping))
        if not {torch.strided}.issuperset(map(_layout, grads)):  # checks refuse it with a name
            return None
        same = (
            all(map(is_, map(state.get, self.params), self._states))
            and self._names == _keys(self._states)
            and same_tensors(self._entries, _values(self._states))
            and self.serves(rule, self.params, self.states)
        )
        return grads if same else None

    def serves(self, rule: UpdateRule, params: list[Tensor], states: list[Tensor]) -> bool:
        """Whether nothing has changed that the plan was made from."""
        return (
            self._options == rule.options
            and self._state_kinds == rule.kinds
            and (self.params is params or same_tensors(self.params, params))
            and (self.states is states or same_tensors(self.states, states))
            and self._metadata == _metadata(params)
            and self._addresses == self._addresses_of(params, states)
        )

    def _addresses_of(self, params: list[Tensor], states: list[Tensor]) -> list[int]:
        """Where tensors lie in memory: somebody may give them other memory, as ``param.data = ...`` does."""
        return list(map(Tensor.data_ptr, chain(params, states))) if self._has_addresses else []


def split(tensors: list[Tensor], parts: Parts, per_matrix: bool = False) -> list[Tensor]:
    """Tensors of the parameters' shapes as views of their parts; or of their batches, with a value per matrix."""
    if parts is None:
        return tensors
    return [part.values(tensors[i]) if per_matrix else part.entries(tensors[i]) for i, part in parts]


def _same_memory(tensors: list[Tensor], values: Tensor) -> bool:
    """Whether values have been written where they belong already."""
    if len(tensors) > 1 or torch.compiler.is_compiling():
        return False
    if has_address(values):
        return tensors[0].data_ptr() == values.data_ptr()
    storages = {tensor.untyped_storage()._cdata for tensor in (tensors[0], values)}
    return len(storages) == 1 and tensors[0].storage_offset() == values.storage_offset()


def copy_all_(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source to its target, with few kernel launches."""
    if targets[0].is_complex():
        # foreach does not write through lazily conjugated views: write the conjugate into the memory behind them
        lazy = [t.is_conj() for t in targets]
        sources = [s.conj().resolve_conj() if c else s for s, c in zip(sources, lazy, strict=True)]
        targets = [t.conj() if c else t for t, c in zip(targets, lazy, strict=True)]
    if len(targets) == 1:  # foreach would cut a large one in several launches
        targets[0].copy_(sources[0])
    else:
        torch._foreach_copy_(targets, sources)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape (...) as (k, ...), by columns where all of them lie so, else by rows.

    Products of matrices that lie otherwise are rounded otherwise: the strides depend on those of the tensors alone, not
    on whether these are neighbours in memory, which a checkpoint does not tell.
    """
    if not tensors[0].is_contiguous():
        tensors = [without_gaps(each) for each in tensors]
        if all(map(by_columns, tensors)):
            return torch.stack([each.mT for each in tensors]).mT
    joined = gathered(tensors) if tensors[0].device.type in pointwise.DEVICES else None
    if joined is not None:
        return joined
    return torch.stack(list(tensors)).contiguous()  # a stack of images may be channels-last


def without_gaps(a: Tensor) -> Tensor:
    """The same, or a copy where its place in memory would show in the result of products.

    Gaps between entries do (``deepcopy`` does not keep them), and so does, on a CPU, a start that is not aligned, as of
    slices of one flat tensor: BLAS takes another path there, and rounds otherwise.
    """
    if torch.compiler.is_compiling():
        return a
    dense = a.is_contiguous() or by_columns(a) or torch.empty_like(a, device="meta").stride() == a.stride()
    aligned = not a.is_cpu or not has_address(a) or a.data_ptr() % _ALIGNMENT == 0
    return a if dense and aligned else a.clone()


def has_address(a: Tensor) -> bool:
    """Whether there is memory behind a tensor: not so for meta and fake tensors."""
    return (type(a) in (Tensor, nn.Parameter) and not a.is_meta) or has_values(a)


_layout = attrgetter("layout")
_attributes = attrgetter("shape", "dtype", "device")


def _metadata(params: list[Tensor]) -> list[Any]:
    return [*map(_attributes, params), *map(Tensor.stride, params)]


def _keys(states: list[dict[str, Tensor]]) -> list[str]:
    return list(chain.from_iterable(states))


def _values(states: list[dict[str, Tensor]]) -> list[Tensor]:
    return list(chain.from_iterable(map(dict.values, states)))


def same_tensors(tensors: list[Tensor], others: list[Tensor]) -> bool:
    """Whether two lists hold the very same tensors."""
    return len(tensors) == len(others) and all(map(is_, tensors, others))
