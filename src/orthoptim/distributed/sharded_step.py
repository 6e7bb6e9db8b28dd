"""The step of parameters that are DTensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed import strategies
from orthoptim.distributed.collectives import Job, Steps, run
from orthoptim.distributed.handshake import missing_gradient
from orthoptim.distributed.sharded_buckets import ShardedBucket
from orthoptim.distributed.sharded_plan import GroupPlan, ShardedPlan
from orthoptim.distributed.sharded_state import init_state, local_values
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.state import newest
from orthoptim.tensors import is_dtensor, local_part, real_dtype

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class LocalWork(NamedTuple):
    """DTensors of one group whose matrices are whole on this rank, as plain tensors.

    Attributes:
        params: the local parts of the parameters.
        grads: their gradients.
        states: their states, the tensors of one parameter after those of another.
    """

    params: list[Tensor]
    grads: list[Tensor]
    states: list[Tensor]


class ShardedStep:
    """Steps the DTensors of an optimizer.

    Attributes:
        plan: which of them are whole on this rank, and buckets of the others.
    """

    def __init__(self) -> None:
        self.plan = ShardedPlan()
        self._deferred: list[tuple[Tensor, dist.ProcessGroup, list[bool]]] = []

    @torch.no_grad()
    def __call__(self, rules: Sequence[UpdateRule], state: MutableMapping[Tensor, Any]) -> dict[int, LocalWork]:
        """Step all matrices that are cut, and return what is left to be stepped as plain tensors are, by group.

        The matrices that are cut come first: what is wrong on one rank only is found before anything is changed.

        Args:
            rules: those of all constrained groups.
            state: that of the optimizer.
        """
        self._raise_deferred()
        self.plan.update(rules)
        grads = {
            index: [_local_gradient(param) for param in group_plan.params]
            for index, group_plan in self.plan.groups.items()
        }
        rule_of = {rule.index: rule for rule in rules}
        self._step_sharded(rule_of, grads, state)
        return {
            index: _local_work(rule_of[index], group_plan, grads[index], state)
            for index, group_plan in self.plan.groups.items()
        }

    def _step_sharded(
        self,
        rule_of: Mapping[int, UpdateRule],
        grads: Mapping[int, list[Tensor | None]],
        state: MutableMapping[Tensor, Any],
    ) -> None:
        present = [grad is not None for of_group in grads.values() for grad in of_group]

        def check(group: dist.ProcessGroup, differs: Tensor) -> None:
            if differs.is_meta:  # a step that is only traced has no values to differ
                return
            if differs.device.type == "cpu":
                self._raise_if(differs, group, present)
            else:  # what lacks a gradient somewhere is skipped everywhere; to say so now would wait for the device
                self._deferred.append((differs, group, present))

        digest = hashlib.blake2b(bytes(present), digest_size=8).digest()
        checked: set[dist.ProcessGroup] = set()
        for buckets in self.plan.rounds:
            jobs = [
                Job(
                    bucket.process_group,
                    bucket.device,
                    self._steps(bucket, rule_of[bucket.group], grads[bucket.group], state),
                )
                for bucket in buckets
            ]
            run(jobs, int.from_bytes(digest), check, checked)

    def _steps(
        self,
        bucket: ShardedBucket,
        rule: UpdateRule,
        all_grads: Sequence[Tensor | None],
        states: MutableMapping[Tensor, Any],
    ) -> Steps:
        """The coroutine that steps one bucket: gather, move as the strategy says, write."""
        method = strategies.Method(rule.method, {**rule.group, "form": bucket.form}, rule.hyperparameters, rule.kinds)
        per_matrix = strategies.per_matrix_names(rule.kinds)
        members = [self.plan.groups[bucket.group].params[i] for i in bucket.members]
        params = [local_part(param) for param in members]
        given = [all_grads[i] for i in bucket.members]
        for param in members:
            if not rule.kinds.keys() <= states[param].keys():
                init_state(param, rule.kinds, rule.group, states[param])
        counting = zip(members, given, strict=True) if bucket.counts_steps else ()
        steps = [states[param]["step"] for param, grad in counting if grad is not None]
        if bucket.count == 0:
            _count(steps)
            return
        x = bucket.gather(params)
        held = {
            name: [local_values(states[param][name]) for param in members]
            for name in (*rule.kinds, *(["master"] if bucket.half else []))
        }
        if bucket.half:
            x = newest(x, bucket.gather(held["master"]))
        lr = torch.as_tensor(rule.group["lr"], dtype=real_dtype(bucket.dtype), device=bucket.device).reshape(())
        state = {
            name: bucket.gather_values(held[name]) if name in per_matrix else bucket.gather(held[name])
            for name in rule.kinds
        }
        # what has no gradient here is to be skipped on all ranks, as if that were not finite
        grads = [
            torch.full_like(param, torch.nan) if grad is None else grad
            for param, grad in zip(params, given, strict=True)
        ]
        before = strategies.Held(x, bucket.gather(grads).to(x.dtype), state, lr)
        new_x, new_state = yield from strategies.STRATEGIES[bucket.strategy](method, before, bucket)
        bucket.write_(params, new_x)
        if bucket.half:
            bucket.write_(held["master"], new_x)
        for name, value in new_state.items():
            bucket.write_(held[name], value)
        _count(steps)

    def _raise_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for differs, group, present in deferred:
            self._raise_if(differs, group, present)

    def _raise_if(self, differs: Tensor, group: dist.ProcessGroup, present: list[bool]) -> None:
        if bool(differs):
            labels = [label for plan in self.plan.groups.values() for label in plan.labels]
            raise RuntimeError(missing_gradient(labels, present, group))


def _local_work(
    rule: UpdateRule, plan: GroupPlan, grads: Sequence[Tensor | None], states: MutableMapping[Tensor, Any]
) -> LocalWork:
    work = LocalWork([], [], [])
    empty = []
    for i in plan.local:
        grad, param = grads[i], plan.params[i]
        if grad is None:
            continue
        state = states[param]
        if not rule.kinds.keys() <= state.keys():
            init_state(param, rule.kinds, rule.group, state)
        if grad.numel() == 0:
            empty.append(state["step"])
            continue
        local = local_part(param)
        work.params.append(local)
        work.grads.append(grad)
        # a parameter that needs no master copy is its own
        work.states.extend([local_values(state[name]) if name in state else local for name in rule.state_names])
    _count(empty)
    return work


def _count(steps: list[Tensor]) -> None:
    if steps:
        torch._foreach_add_(steps, 1)


def _local_gradient(param: DTensor) -> Tensor | None:
    grad = param.grad
    if grad is None:
        return None
    assert is_dtensor(grad)
    ours, theirs = param._spec, grad._spec
    if theirs is not ours and theirs.placements != ours.placements:  # such as a pending sum
        grad = grad.redistribute(placements=param.placements)
    return grad._local_tensor
