"""The plan of the matrices that are whole on this device: made once, executed by every step, shown by ``opt.plan()``.

A plan keeps what a step works on: lists of tensors, buckets, and views of the memory of parameters and states. It is
made again when something it was made from has changed.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from orthoptim.base import per_matrix
from orthoptim.engine import kernels
from orthoptim.engine.blocks import Block, has_address, together
from orthoptim.engine.buckets import Bucket, make_buckets
from orthoptim.engine.naming import names_of
from orthoptim.engine.rule import UpdateRule
from orthoptim.tensors import local_part
from orthoptim.views import View


class LocalPlan:
    """How the matrices of one param group that are whole on this device are stepped.

    Args:
        rule: how the group is updated.
        params: the parameters that step, plain tensors or the local parts of DTensors.
        states: their states, the tensors of one parameter after those of another; empty before the first step.
        local_views: for the local part of a DTensor, by ``id``, the view of that part.
        state: that of the optimizer.

    Attributes:
        buckets: what a step works through.
        blocks: for each bucket, the tensors of its blocks.
        devices: where they are.
        owners: the parameters, once for each of the parts that a view divides them into.
    """

    def __init__(
        self,
        rule: UpdateRule,
        params: list[Tensor],
        states: list[Tensor],
        local_views: Mapping[int, View],
        state: Mapping[Tensor, dict[str, Tensor]],
    ) -> None:
        group, compiling = rule.group, torch.compiler.is_compiling()
        view = View.of(group["view"]).scaled(group["scale"])
        self._parts = None
        if view.is_divided:
            self._parts = [
                (i, part)
                for i, param in enumerate(params)
                for part in local_views.get(id(param), view).parts(param.shape, group["side"])
            ]
        owners = list(range(len(params))) if self._parts is None else [i for i, _ in self._parts]
        self.owners, self.params, self.states = [params[i] for i in owners], params, states
        columns = {name: states[i :: len(rule.state_names)] for i, name in enumerate(rule.state_names) if states}
        counters = columns.pop("step", [])
        first_parts = {owner: i for i, owner in reversed(list(enumerate(owners)))}  # they count the steps
        self.steps = [counters[owner] if i == first_parts[owner] else None for i, owner in enumerate(owners) if states]
        values = {name for name, kind in rule.kinds.items() if per_matrix(kind)}
        self.columns = {name: self.parts(tensors, name in values) for name, tensors in columns.items()}
        self.members = self.parts(params)
        names = [""] * len(params) if compiling else _names(rule, params)
        self.buckets = [
            self._complete(rule, bucket, [names[i] for i in owners])
            for bucket in make_buckets(
                self.members,
                view,
                group["side"],
                list(self.columns.values()),
                group["compile"] or compiling,
                group["block_cap_mb"],
            )
        ]
        tensors: dict[str, list[Any]] = {"param": self.members, "step": self.steps, **self.columns}
        self.blocks = [
            [BlockTensors(block, tensors, values, bucket.half) for block in bucket.blocks]
            if states and bucket.kernel is None
            else []
            for bucket in self.buckets
        ]
        self.devices = {bucket.device for bucket in self.buckets}
        self._rates: dict[Hashable, tuple[float, Tensor]] = {}
        if not compiling:
            self._remember(rule, state)

    def _complete(self, rule: UpdateRule, bucket: Bucket, names: Sequence[str]) -> Bucket:
        """The bucket with its names and its form; in one block, where a kernel covers it."""
        form = rule.method.form(bucket.p, bucket.n, rule.group, bucket.device.type)
        bucket = bucket._replace(group=rule.index, names=tuple(names[i] for i in bucket.members), form=form)
        kernel = kernels.covers(rule, bucket, self.members, self.columns)
        if kernel is None:
            return bucket
        block = bucket.blocks[0]._replace(members=bucket.members, matrices=sum(bucket.counts), part=None, mixed=True)
        return bucket._replace(form="triton", blocks=[block], kernel=kernel)

    def parts(self, tensors: list[Tensor], per_matrix: bool = False) -> list[Tensor]:
        """Tensors of the parameters' shapes as views of their parts; or of their batches, with a value per matrix."""
        if self._parts is None:
            return tensors
        return [part.values(tensors[i]) if per_matrix else part.entries(tensors[i]) for i, part in self._parts]

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

    # Whether it still serves

    def _remember(self, rule: UpdateRule, state: Mapping[Tensor, dict[str, Tensor]]) -> None:
        """Write down what the plan was made from."""
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


class BlockTensors:
    """The parameters and states of one block.

    Args:
        block: the block.
        tensors: lists of tensors of all parameters by name; the parameters themselves are ``"param"``.
        values: the names of those with a value for each matrix.
        half: whether the parameters have a master copy.

    Attributes:
        steps: counters of the steps, of the parameters that begin in this block.
        largest: the largest entry that the parameters can hold, where that is less than is computed in.
    """

    def __init__(self, block: Block, tensors: Mapping[str, list[Any]], values: set[str], half: bool) -> None:
        self.block, self.half, self._per_matrix = block, half, values
        members = {name: block.pick(listed) for name, listed in tensors.items() if half or name != "master"}
        # if the next part of a parameter raises, its matrices are skipped
        begins = block.part is None or block.part[0] == 0
        self.steps = together([each for each in members.pop("step") if begins and each is not None])
        members["param"] = [param.detach() for param in members["param"]]
        self.members = {name: together(listed, block.mixed) for name, listed in members.items()}
        first = members["param"][0]
        self.largest = torch.finfo(torch.float16).max / block.scale if first.dtype == torch.float16 else None
        keeps = not torch.compiler.is_compiling() and has_address(first)
        self._views = {name: self._view(name) for name in members} if keeps else {}

    def _view(self, name: str) -> Tensor | None:
        """The matrices where they lie; ``None``: they must be copied."""
        first, gathered = self.members[name][0], self._gather(name)
        same = first.untyped_storage().data_ptr() == gathered.untyped_storage().data_ptr()
        return gathered if same else None

    def _gather(self, name: str) -> Tensor:
        listed = self.members[name]
        return self.block.gather_scalars(listed) if name in self._per_matrix else self.block.gather(listed)

    def gather(self, name: str) -> Tensor:
        """The matrices (B, p, n), or a value for each (B,)."""
        view = self._views.get(name)
        return self._gather(name) if view is None else view

    def gather_grads(self, grads: list[Tensor], dtype: torch.dtype) -> Tensor:
        """The gradients of the block among those of all parameters, (B, p, n), with respect to X/σ."""
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


def are_plain(params: Sequence[Tensor]) -> bool:
    """Whether no parameter can be a DTensor, told by their types alone: a thousand take microseconds."""
    return set(map(type, params)) <= {Tensor, nn.Parameter}


def _names(rule: UpdateRule, params: list[Tensor]) -> list[str]:
    pairs = zip(names_of(rule.group), rule.group["params"], strict=True)
    name_of = {id(local_part(param)): name for name, param in pairs}
    return [name_of[id(param)] for param in params]


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
