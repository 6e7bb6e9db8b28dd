"""The step of matrices that are whole on this device, group by group, and its plan."""

from collections.abc import Hashable, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor

from orthoptim.engine import kernels
from orthoptim.engine.blocks import together
from orthoptim.engine.buckets import Bucket, make_buckets
from orthoptim.engine.naming import names_of, parameter_name
from orthoptim.engine.parts import Division
from orthoptim.engine.rule import UpdateRule
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


class LocalStep:
    """Steps the matrices of an optimizer that are whole on this device, and keeps its plans."""

    def __init__(self) -> None:
        self._plans: dict[int, LocalPlan] = {}
        self._block_steps: dict[int, BlockStep] = {}
        self._warned: set[Tensor] = set()

    def __call__(
        self,
        rule: UpdateRule,
        params: list[Tensor],
        grads: list[Tensor],
        flat_states: list[Tensor],
        local_views: Mapping[int, View],
    ) -> None:
        """Step the parameters of one group.

        Args:
            rule: how the group is updated.
            params: plain tensors, or the local parts of DTensors.
            grads: their gradients.
            flat_states: their states, the tensors of one parameter after those of another.
            local_views: see :meth:`plan`.
        """
        names = ("step", "master", *rule.kinds)
        states = {name: flat_states[i :: len(names)] for i, name in enumerate(names)}
        steps: Sequence[Tensor | None] = states.pop("step")
        plan, step, owners = self.plan(rule, params, states, local_views), self._block_step(rule), params
        if plan.division is not None:
            owners, steps = plan.division.owners(params), plan.division.firsts(steps)
            params, grads = plan.division.entries(params), plan.division.entries(grads)
            states = {name: plan.division.state(name, tensors, rule.kinds) for name, tensors in states.items()}
        with full_precision(*plan.devices):
            for bucket in plan.buckets:
                if bucket.kernel is not None:
                    bucket.kernel(rule, params, grads, states, steps)
                    continue
                lr = torch.as_tensor(rule.group["lr"], dtype=bucket.real_dtype, device=bucket.device).reshape(())
                step.form = bucket.form
                for block in bucket.blocks:
                    step(block, bucket.half, lr, params, grads, states)
                    if block.part is None or block.part[0] == 0:  # if the next part raises, its matrices are skipped
                        counters = [steps[i] for i in block.members]
                        present = [counter for counter in counters if counter is not None]
                        if present:
                            torch._foreach_add_(together(present), 1)
                    if step.rescued is not None:
                        counts = dict(zip(bucket.members, bucket.counts, strict=True))
                        self._warn_of_far(rule, [(owners[i], counts[i]) for i in block.members], step.rescued)

    def plan(
        self,
        rule: UpdateRule,
        params: list[Tensor],
        states: dict[str, list[Tensor]],
        local_views: Mapping[int, View],
    ) -> "LocalPlan":
        """The plan of these parameters: the one of the last step, if it still serves.

        Args:
            rule: how their group is updated.
            params: the parameters.
            states: their states by name; empty before the first step.
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
        if plan is not None and plan.is_part_of(params) and plan.serves(rule, plan.params, {}):
            return plan
        return self.plan(rule, [param for param in params if param.numel() > 0], {}, local_views)

    def _block_step(self, rule: UpdateRule) -> BlockStep:
        """What steps the blocks of a group; kept where it holds compiled code."""
        group, method = rule.group, rule.method
        gradient = method.gradient if method.replaces_gradient(group) else None
        kept = self._block_steps.get(id(group)) if group["compile"] else None
        if kept is not None and kept.group is group and kept.kinds == rule.kinds:
            kept.hyperparameters, kept.gradient = rule.hyperparameters, gradient
            return kept
        update_entries = method.update_entries if method.unrolls else None
        step = BlockStep(
            method.update_whole, group, rule.hyperparameters, rule.kinds, method.decomposes, update_entries, gradient
        )
        if group["compile"]:
            self._block_steps[id(group)] = step
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


class LocalPlan:
    """The buckets of those parameters of a group whose matrices are whole on this device.

    It is kept from step to step, and made again when something it was made from changes: the parameters that have a
    gradient, their shape, strides, dtype or device, their state, or an option of their group.

    Args:
        rule: how the group is updated.
        params: the parameters, plain tensors or the local parts of DTensors.
        names: what to call them.
        states: state tensors of each parameter, by name; empty before the first step.
        views: the views that divide them; none, where these do not.

    Attributes:
        buckets: what a step works through.
        devices: where they are.
        division: the parts of parameters that views divide; None, where these do not.
    """

    def __init__(
        self,
        rule: UpdateRule,
        params: list[Tensor],
        names: Sequence[str],
        states: Mapping[str, list[Tensor]],
        views: Sequence[View],
    ) -> None:
        group = rule.group
        compiles = group["compile"] or torch.compiler.is_compiling()
        division = Division(params, views, group["side"])
        names = division.owners(names)
        columns = [division.state(name, tensors, rule.kinds) for name, tensors in states.items()]
        parts = division.entries(params)
        buckets = make_buckets(parts, group["view"], group["side"], columns, compiles)
        self.division = division if views else None
        self.buckets = [
            bucket._replace(
                group=rule.index,
                names=tuple(names[i] for i in bucket.members),
                form=rule.method.form(bucket.p, bucket.n, group),
            )
            for bucket in buckets
        ]
        by_name = dict(zip(states, columns, strict=True))
        self.buckets = [_with_kernel(rule, bucket, parts, by_name) for bucket in self.buckets]
        self.devices = {bucket.device for bucket in buckets}
        self.params = params
        self._options = rule.options
        self._kinds = list(map(_kind, params))
        self._states = _flat(states)

    def serves(self, rule: UpdateRule, params: list[Tensor], states: Mapping[str, list[Tensor]]) -> bool:
        """Whether nothing has changed that the plan was made from."""
        flat = _flat(states)
        return (
            self._options == rule.options
            and _same(self.params, params)
            and (not flat or not self._states or _same(self._states, flat))
            and self._kinds == list(map(_kind, params))
        )

    def is_part_of(self, params: list[Tensor]) -> bool:
        """Whether its parameters are among these."""
        return {id(param) for param in self.params} <= {id(param) for param in params}


def _with_kernel(rule: UpdateRule, bucket: Bucket, params: list[Tensor], states: Mapping[str, list[Tensor]]) -> Bucket:
    """The bucket in one block, if a kernel covers it; else the bucket itself."""
    kernel = kernels.covers(rule, bucket, params, states)
    if kernel is None:
        return bucket
    block = bucket.blocks[0]._replace(members=bucket.members, matrices=sum(bucket.counts), part=None, mixed=True)
    return bucket._replace(form="triton", blocks=[block], kernel=kernel)


def _kind(param: Tensor) -> Hashable:
    return param.shape, param.stride(), param.dtype, param.device


def _flat(states: Mapping[str, list[Tensor]]) -> list[Tensor]:
    return [tensor for tensors in states.values() for tensor in tensors]


def _same(tensors: list[Tensor], others: list[Tensor]) -> bool:
    """Whether two lists hold the very same tensors."""
    return len(tensors) == len(others) and all(map(is_, tensors, others))
