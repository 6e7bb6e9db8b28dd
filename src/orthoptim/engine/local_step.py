"""The step of matrices that are whole on this device, group by group, and its plan.

What a step works on is kept from step to step: lists of tensors, buckets, and views of the memory of parameters and
states. It is made again when something it was made from has changed.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor

from orthoptim.base import per_matrix
from orthoptim.engine import kernels
from orthoptim.engine.blocks import Block, has_address, together
from orthoptim.engine.buckets import Bucket, make_buckets
from orthoptim.engine.naming import names_of, parameter_name
from orthoptim.engine.parts import Division
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.state import newest
from orthoptim.engine.step import BlockStep
from orthoptim.precision import full_precision
from orthoptim.tensors import local_part
from orthoptim.user_warnings import warn_user
from orthoptim.views import View

FAR = (
    "{name} was far from orthonormal ({far} of {matrices} matrices): it was written after the optimizer was built, or "
    "steps without a guarantee left the manifold. Steps bring it back and are counted as rescued in drift(); a matrix "
    "without full rank does not step and is counted as skipped: call orthoptim.orthogonalize_ on it"
)


class GroupTensors:
    """The tensors of a group that a step works on, kept while its parameters and their states are the same tensors.

    Args:
        rule: how the group is updated; none of its parameters is a DTensor.
        state: that of the optimizer.
        params: the parameters that step.
        states: their states, the tensors of one parameter after those of another.
    """

    def __init__(
        self, rule: UpdateRule, state: Mapping[Tensor, Any], params: list[Tensor], states: list[Tensor]
    ) -> None:
        self.params, self.states = params, states
        self._kinds, self._all = rule.kinds, list(rule.group["params"])
        self._dtypes = list(map(_dtype, self._all))
        self._missing = [param.grad is None for param in self._all]
        steps = {id(param) for param in params}
        self._steps = None if len(steps) == len(self._all) else [id(param) in steps for param in self._all]
        self._held = [state[param] for param in params]
        self._names, self._entries = _names(self._held), _entries(self._held)

    def grads(self, rule: UpdateRule, state: Mapping[Tensor, Any]) -> list[Tensor] | None:
        """The gradients of ``params``; ``None`` where another tensor steps, or one with another state."""
        if self._kinds != rule.kinds or not _same(self._all, rule.group["params"]):
            return None
        if list(map(_dtype, self._all)) != self._dtypes:  # model.to(dtype) keeps the tensors
            return None
        grads = [param.grad for param in self._all]
        if [grad is None for grad in grads] != self._missing:
            return None
        chosen: list[Any] = grads if self._steps is None else list(compress(grads, self._steps))
        if not {torch.strided}.issuperset(map(_layout, chosen)):  # refused with a name elsewhere
            return None
        same = (
            all(map(is_, map(state.get, self.params), self._held))
            and self._names == _names(self._held)
            and _same(self._entries, _entries(self._held))
        )
        return chosen if same else None


_dtype, _layout = attrgetter("dtype"), attrgetter("layout")


def _names(held: list[dict[str, Tensor]]) -> list[str]:
    return list(chain.from_iterable(held))


def _entries(held: list[dict[str, Tensor]]) -> list[Tensor]:
    return list(chain.from_iterable(map(dict.values, held)))


class LocalStep:
    """Steps the matrices of an optimizer that are whole on this device, and keeps its plans."""

    def __init__(self) -> None:
        self._plans: dict[int, LocalPlan] = {}
        self._block_steps: dict[tuple[int, str], tuple[UpdateRule, BlockStep]] = {}
        self._warned: set[Tensor] = set()

    def __call__(
        self,
        rule: UpdateRule,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[Tensor],
        local_views: Mapping[int, View],
    ) -> None:
        """Step the parameters of one group.

        Args:
            rule: how the group is updated.
            params: plain tensors, or the local parts of DTensors.
            grads: their gradients.
            states: their states, the tensors of one parameter after those of another.
            local_views: see :meth:`plan`.
        """
        plan = self.plan(rule, params, states, local_views)
        if plan.division is not None:
            grads = plan.division.entries(grads)
        with full_precision(*plan.devices, products=rule.group.get("matmul_precision") != "mixed"):
            for bucket, all_tensors in zip(plan.buckets, plan.tensors, strict=True):
                if bucket.kernel is not None:
                    bucket.kernel(rule, plan.parts, grads, plan.columns, plan.steps)
                    continue
                step, lr = self._block_step(rule, bucket.form), plan.lr(rule.group["lr"], bucket)
                for block, tensors in zip(bucket.blocks, all_tensors, strict=True):
                    _step_block(step, block, tensors, bucket.half, grads, lr)
                    if tensors.steps:
                        torch._foreach_add_(tensors.steps, 1)
                    if step.rescued is not None:
                        counts = dict(zip(bucket.members, bucket.counts, strict=True))
                        self._warn_of_far(rule, [(plan.owners[i], counts[i]) for i in block.members], step.rescued)

    def plan(
        self, rule: UpdateRule, params: list[Tensor], states: list[Tensor], local_views: Mapping[int, View]
    ) -> "LocalPlan":
        """The plan of these parameters: the one of the last step, if it still serves.

        Args:
            rule: how their group is updated.
            params: the parameters.
            states: their states, the tensors of one parameter after those of another; empty before the first step.
            local_views: for the local part of a DTensor, by ``id``, the view of that part.
        """
        compiling = torch.compiler.is_compiling()  # a graph keeps what was decided when it was traced
        plan = None if compiling else self._plans.get(rule.index)
        if plan is not None and plan.serves(rule, params, states):
            return plan
        view = View.of(rule.group["view"])
        views = [local_views.get(id(param), view) for param in params] if view.is_divided else []
        if compiling:
            return LocalPlan(rule, params, [""] * len(params), states, views)
        pairs = zip(names_of(rule.group), rule.group["params"], strict=True)
        name_of = {id(local_part(param)): name for name, param in pairs}
        plan = LocalPlan(rule, params, [name_of[id(param)] for param in params], states, views)
        self._plans[rule.index] = plan
        return plan

    def last_plan(self, rule: UpdateRule, params: list[Tensor], local_views: Mapping[int, View]) -> "LocalPlan":
        """The plan of the last step if it still serves, else that of a step in which all parameters have a gradient."""
        plan = self._plans.get(rule.index)
        if plan is not None and plan.is_part_of(params) and plan.serves(rule, plan.params, plan.states):
            return plan
        return self.plan(rule, [param for param in params if param.numel() > 0], [], local_views)

    def _block_step(self, rule: UpdateRule, form: str) -> BlockStep:
        """What steps the blocks of a form; kept while the options are the same, as it holds compiled code."""
        former, step = self._block_steps.get((rule.index, form), (None, None))
        if former is not None and step is not None and (former.options, former.kinds) == (rule.options, rule.kinds):
            step.update, step.hyperparameters = rule.method.update_whole, rule.hyperparameters
            step.group.update(rule.group)  # hyperparameters of the base stand there, and are constants of a graph
            return step
        method, group = rule.method, {**rule.group, "form": form}
        step = BlockStep(
            method.update_whole,
            group,
            rule.hyperparameters,
            rule.kinds,
            method.decomposes,
            method.update_entries if method.unrolls else None,
            method.gradient if method.replaces_gradient(group) else None,
        )
        if not torch.compiler.is_compiling():
            self._block_steps[rule.index, form] = (rule, step)
        return step

    def _warn_of_far(self, rule: UpdateRule, members: list[tuple[Tensor, int]], rescued: Tensor) -> None:
        """Warn, once for each parameter, of matrices that somebody has written far off the manifold.

        Args:
            rule: that of their group.
            members: the parameters of one block, and how many matrices each has in it if it is not alone.
            rescued: which of its matrices were too far away.
        """
        flags = [rescued] if len(members) == 1 else torch.split(rescued, [count for _, count in members])
        for (param, _), flag in zip(members, flags, strict=True):
            if param in self._warned or not bool(flag.any()):
                continue
            self._warned.add(param)
            positions: dict[Any, int] = {id(local_part(other)): i for i, other in enumerate(rule.group["params"])}
            name = parameter_name(rule.group, positions[id(param)], f"group {rule.index}")
            warn_user(FAR.format(name=name, far=int(flag.sum()), matrices=len(flag)))


def _step_block(
    step: BlockStep, block: Block, tensors: "BlockTensors", half: bool, grads: list[Tensor], lr: Tensor
) -> None:
    """Step the matrices of one block, which are written, with their state, after all has been computed."""
    x = tensors.gather("param")
    if half:
        x = newest(x, tensors.gather("master"))
    state = {name: tensors.gather(name) for name in step.kinds}
    # nobody else holds the gathered gradient, so that its memory is free again once it is used
    new_x, new_state = step(x, block.gather(block.pick(grads)).to(x.dtype), state, lr, tensors.largest)
    for name, value in new_state.items():  # first: the last point may be one of them
        tensors.write_(name, value)
    tensors.write_("param", new_x)
    if half:
        tensors.write_("master", new_x)


class BlockTensors:
    """The parameters and states of one block.

    Args:
        block: the block.
        tensors: lists of tensors of all parameters by name; the parameters themselves are ``"param"``.
        scalars: the names of those with a value for each matrix.

    Attributes:
        steps: counters of the steps, of the parameters that begin in this block.
        largest: the largest entry that the parameters can hold, where that is less than is computed in.
    """

    def __init__(self, block: Block, tensors: Mapping[str, list[Any]], scalars: set[str]) -> None:
        self.block, self.scalars = block, scalars
        members = {name: block.pick(listed) for name, listed in tensors.items()}
        # if the next part of a parameter raises, its matrices are skipped
        begins = block.part is None or block.part[0] == 0
        self.steps = together([each for each in members.pop("step") if begins and each is not None])
        members["param"] = [param.detach() for param in members["param"]]
        self.members = {name: together(listed, block.mixed) for name, listed in members.items()}
        half = members["param"][0].dtype == torch.float16
        self.largest = torch.finfo(torch.float16).max if half else None
        keeps = not torch.compiler.is_compiling() and has_address(members["param"][0])
        self._views = {name: self._view(name) for name in members} if keeps else {}

    def _view(self, name: str) -> Tensor | None:
        """The matrices where they lie; ``None``: they must be copied."""
        first, gathered = self.members[name][0], self._gather(name)
        same = first.untyped_storage().data_ptr() == gathered.untyped_storage().data_ptr()
        return gathered if same else None

    def _gather(self, name: str) -> Tensor:
        listed = self.members[name]
        return self.block.gather_scalars(listed) if name in self.scalars else self.block.gather(listed)

    def gather(self, name: str) -> Tensor:
        """The matrices (B, p, n), or a value for each (B,)."""
        view = self._views.get(name)
        return self._gather(name) if view is None else view

    def write_(self, name: str, value: Tensor) -> None:
        """The inverse."""
        view = self._views.get(name)
        if value is view:
            return
        if view is not None:
            view.copy_(value)
        elif name in self.scalars:
            self.block.write_scalars_(self.members[name], value)
        else:
            self.block.write_(self.members[name], value)


class LocalPlan:
    """The buckets of those parameters of a group whose matrices are whole on this device.

    It is kept from step to step, and made again when something it was made from changes: the parameters that have a
    gradient, their shape, strides, dtype, device or memory, their state, or an option of their group.

    Args:
        rule: how the group is updated.
        params: the parameters, plain tensors or the local parts of DTensors.
        names: what to call them.
        states: their states, the tensors of one parameter after those of another; empty before the first step.
        views: the views that divide them; none, where these do not.

    Attributes:
        buckets: what a step works through.
        tensors: for each bucket, the tensors of its blocks.
        devices: where they are.
        division: the parts of parameters that views divide; None, where these do not.
        owners: the parameters, once for each part.
    """

    def __init__(
        self, rule: UpdateRule, params: list[Tensor], names: Sequence[str], states: list[Tensor], views: Sequence[View]
    ) -> None:
        group = rule.group
        compiles = group["compile"] or torch.compiler.is_compiling()
        division = Division(params, views, group["side"])
        columns = (
            {name: states[i :: len(rule.state_names)] for i, name in enumerate(rule.state_names)} if states else {}
        )
        steps = division.firsts(columns.pop("step")) if states else []
        columns = {name: division.state(name, listed, rule.kinds) for name, listed in columns.items()}
        parts, names = division.entries(params), division.owners(names)
        self.buckets = [
            bucket._replace(
                group=rule.index,
                names=tuple(names[i] for i in bucket.members),
                form=rule.method.form(bucket.p, bucket.n, group, bucket.device.type),
            )
            for bucket in make_buckets(
                parts, group["view"], group["side"], list(columns.values()), compiles, group["block_cap_mb"]
            )
        ]
        self.buckets = [_with_kernel(rule, bucket, parts, columns) for bucket in self.buckets]
        self.parts, self.columns, self.steps = parts, columns, steps  # what kernels are given
        scalars = {name for name, kind in rule.kinds.items() if per_matrix(kind)}
        listed: dict[str, list[Any]] = {"param": parts, "step": steps, **columns} if states else {}
        self.tensors = [
            [BlockTensors(block, _needed(bucket, listed), scalars) for block in bucket.blocks]
            if states and bucket.kernel is None
            else []
            for bucket in self.buckets
        ]
        self.devices = {bucket.device for bucket in self.buckets}
        self.division = division if views else None
        self.owners = division.owners(params)
        self.params, self.states = params, states
        self._options, self._state_kinds = rule.options, rule.kinds
        self._rates: dict[Hashable, tuple[float, Tensor]] = {}
        if not torch.compiler.is_compiling():
            self._kinds = list(map(_kind, params))
            self._addresses = _addresses(params, states)

    def serves(self, rule: UpdateRule, params: list[Tensor], states: list[Tensor]) -> bool:
        """Whether nothing has changed that the plan was made from."""
        return (
            self._options == rule.options
            and self._state_kinds == rule.kinds
            and (self.params is params or _same(self.params, params))
            and (self.states is states or _same(self.states, states))
            and self._kinds == list(map(_kind, params))
            and self._addresses == _addresses(params, states)
        )

    def is_part_of(self, params: list[Tensor]) -> bool:
        """Whether its parameters are among these."""
        return {id(param) for param in self.params} <= {id(param) for param in params}

    def lr(self, value: float | Tensor, bucket: Bucket) -> Tensor:
        """The learning rate as a 0-d tensor; that of the last step, if it is the same number."""
        if isinstance(value, Tensor):
            return value.to(dtype=bucket.real_dtype, device=bucket.device).reshape(())
        kept = self._rates.get((bucket.real_dtype, bucket.device))
        if kept is not None and kept[0] == value:
            return kept[1]
        tensor = torch.full((), value, dtype=bucket.real_dtype, device=bucket.device)
        if not torch.compiler.is_compiling():
            self._rates[bucket.real_dtype, bucket.device] = (value, tensor)
        return tensor


def _needed(bucket: Bucket, columns: Mapping[str, list[Any]]) -> Mapping[str, list[Any]]:
    """Without master copies, where the parameters are their own."""
    return columns if bucket.half else {name: listed for name, listed in columns.items() if name != "master"}


def _with_kernel(rule: UpdateRule, bucket: Bucket, params: list[Tensor], states: Mapping[str, list[Tensor]]) -> Bucket:
    """The bucket in one block, if a kernel covers it; else the bucket itself."""
    kernel = kernels.covers(rule, bucket, params, states)
    if kernel is None:
        return bucket
    block = bucket.blocks[0]._replace(members=bucket.members, matrices=sum(bucket.counts), part=None, mixed=True)
    return bucket._replace(form="triton", blocks=[block], kernel=kernel)


def _kind(param: Tensor) -> Hashable:
    return param.shape, param.stride(), param.dtype, param.device


def _addresses(params: list[Tensor], states: list[Tensor]) -> list[int]:
    """Where tensors lie in memory: somebody may give them other memory, as ``param.data = ...`` does."""
    return list(map(Tensor.data_ptr, chain(params, states))) if all(map(has_address, params)) else []


def _same(tensors: list[Tensor], others: list[Tensor]) -> bool:
    """Whether two lists hold the very same tensors."""
    return len(tensors) == len(others) and all(map(is_, tensors, others))
