"""The step of parameters that are DTensors: its plan, and how that is executed."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.buckets import (
    ROUND_BYTES,
    ShardedBucket,
    local_gradients,
    local_tensors,
    make_rounds,
    make_sharded_buckets,
    matrix_bytes,
)
from orthoptim.distributed.collectives import Job, Steps, run
from orthoptim.distributed.handshake import Peers, StepCheck, meshes, peers_of
from orthoptim.distributed.layout import Layout
from orthoptim.distributed.placements import local_view
from orthoptim.distributed.state import init_state
from orthoptim.distributed.strategies import Kept, choose, step_bucket
from orthoptim.engine.buckets import together
from orthoptim.engine.naming import names_of, parameter_name
from orthoptim.engine.plan import has_address, same_tensors
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.state import newest, rescaled
from orthoptim.precision import full_precision
from orthoptim.stiefel import FORMS, can_look
from orthoptim.tensors import is_dtensor, local_part
from orthoptim.views import View


@dataclass(frozen=True)
class GroupPlan:
    """How the parameters of one param group are stepped that ranks share.

    Attributes:
        index: that of the group.
        params: those that require a gradient.
        names: what to call them in tables.
        labels: what to call them in messages.
        local: positions of those whose matrices are whole on this rank.
        sharded: buckets of the others.
    """

    index: int
    params: list[Tensor]
    names: list[str]
    labels: list[str]
    local: list[int]
    sharded: list[ShardedBucket]

    def local_parts(self) -> list[Tensor]:
        """What this rank holds of the parameters whose matrices are whole here."""
        return [local_part(self.params[i]) for i in self.local]


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
    """Steps the DTensors of an optimizer by a plan, which is made again when something it was made from changes.

    Attributes:
        round_bytes: how much of the matrices that are cut is under way at a time, for each rank.
        communication_dtype: what directions of normalised bases travel in; None: what they are computed in.
        replicas: the ranks that hold the plain parameters and share their work; None: each steps all of them.
        groups: the plans of the param groups that have DTensors, by index of the group.
        rounds: parts of the buckets whose matrices are cut, in the order of the step.
        local_views: for the local part of a parameter that a view divides, by ``id``, the view of that part.
    """

    def __init__(self) -> None:
        self.round_bytes = ROUND_BYTES
        self.communication_dtype: torch.dtype | None = None
        self.replicas: dist.ProcessGroup | None = None
        self.groups: dict[int, GroupPlan] = {}
        self.rounds: list[list[ShardedBucket]] = []
        self.local_views: dict[int, View] = {}
        self._overlap = True
        self._devices: set[torch.device] = set()
        self._work: dict[int, _GroupWork] = {}
        self._kept: dict[ShardedBucket, Kept] = {}
        self._travels: tuple[dist.ProcessGroup, torch.device] | None = None
        self._is_complete = False
        self._key: list[Any] = []
        self._frozen: list[tuple[str, Tensor]] = []
        self._compared: list[tuple[str, Tensor]] = []
        self._peers: list[Peers] = []
        self._check = StepCheck()

    @torch.no_grad()
    def __call__(self, rules: Sequence[UpdateRule], state: MutableMapping[Tensor, Any]) -> dict[int, LocalWork]:
        """Step all matrices that are cut, and return what is left to be stepped as plain tensors are, by group.

        The matrices that are cut come first: what is wrong on one rank only is found before anything is changed.

        Args:
            rules: those of all constrained groups.
            state: that of the optimizer.
        """
        self._check.raise_deferred()
        key = self._key_of(rules)
        changed = key != self._key
        self._compare(rules, changed)
        if changed:
            self._check.finish()  # all ranks make a new plan, or none
            self._make(rules, key)
            self._compare(rules, False)
        work = {rule.index: self._work_of(rule, state) for rule in rules if rule.index in self.groups}
        if self._check.sizes is None and self._check.finish():
            self._forget()
        self._is_complete = False  # if this step fails here, the next one sends X

        def jobs(buckets: Sequence[ShardedBucket]) -> list[Job]:
            check = [Job(*self._travels, self._compare_on_the_way())] if self._travels else []
            return check + [
                Job(
                    bucket.process_group,
                    bucket.device,
                    work[bucket.group].steps(bucket, self._kept.get(bucket)),
                    bucket.replicas,
                )
                for bucket in buckets
            ]

        with full_precision(*self._devices):
            run(map(jobs, self.rounds), self._overlap)
        self._is_complete = True
        return {index: of_group.local_work() for index, of_group in work.items()}

    def _compare(self, rules: Sequence[UpdateRule], changed: bool) -> None:
        settings = {"round_bytes": str(self.round_bytes), "communication_dtype": str(self.communication_dtype)}
        written = changed or not self._is_complete or not self._is_all_kept()
        if written:
            self._forget()
        self._check.start(self._peers, rules, self._compared, settings, changed, written)

    def _compare_on_the_way(self) -> Steps:
        if (yield from self._check.travel()):
            self._forget()

    def _forget(self) -> None:
        """In this step X is sent to its owners."""
        for kept in self._kept.values():
            kept.pieces = None

    def _is_all_kept(self) -> bool:
        """Whether parameters are what the last step wrote; ``param.data.mul_(2)`` tells no version."""
        local = {index: local_tensors(plan.params) for index, plan in self.groups.items()}
        return all(
            bucket.count == 0 or kept.are_same(bucket.members_of(local[bucket.group]), bucket)
            for bucket, kept in self._kept.items()
        )

    def _work_of(self, rule: UpdateRule, states: MutableMapping[Tensor, Any]) -> _GroupWork:
        """The tensors of a group; those of the last step, if they are the same."""
        work = self._work.get(rule.index)
        if work is None or not work.serves(states):
            work = self._work[rule.index] = _GroupWork(rule, self.groups[rule.index], states)
        work.start(rule)
        return work

    def plan(self, rules: Sequence[UpdateRule]) -> None:
        """Make the plan of the next step, if that of the last one does not serve. All ranks must call."""
        key = self._key_of(rules)
        if key != self._key:
            self._make(rules, key)

    def _key_of(self, rules: Sequence[UpdateRule]) -> list[Any]:
        """What the plan is made from.

        A parameter that is frozen later on stays in the plan, without a gradient; one that is thawed is not in it yet.
        """
        thawed = [param.requires_grad for _, param in self._frozen]
        keys = [(rule.index, rule.options, *map(id, rule.group["params"])) for rule in rules]
        return [*keys, self.round_bytes, self.communication_dtype, self.replicas, any(thawed)]

    def _make(self, rules: Sequence[UpdateRule], key: list[Any]) -> None:
        if self.communication_dtype not in (None, torch.bfloat16):
            raise ValueError(f"Invalid communication_dtype: {self.communication_dtype}; it is torch.bfloat16 or None")
        self.groups, self.local_views, self._frozen, self._work = {}, {}, [], {}
        for rule in rules:
            shared = self.replicas is not None
            sharded = [i for i, param in enumerate(rule.group["params"]) if shared or is_dtensor(param)]
            named = [(parameter_name(rule.group, i, f"group {rule.index}"), rule.group["params"][i]) for i in sharded]
            self._frozen.extend((name, param) for name, param in named if not param.requires_grad)
            positions = [i for i in sharded if rule.group["params"][i].requires_grad]
            if positions:
                plan = self.groups[rule.index] = self._plan_group(rule, positions)
                view = View.of(rule.group["view"])
                if view.is_divided:
                    whole = [
                        param for i in plan.local if is_dtensor(param := plan.params[i]) and local_part(param).numel()
                    ]
                    self.local_views |= {id(local_part(param)): local_view(param, view) for param in whole}
        trained = [pair for plan in self.groups.values() for pair in zip(plan.labels, plan.params, strict=True)]
        self._compared = [*trained, *self._frozen]
        buckets = [bucket for plan in self.groups.values() for bucket in plan.sharded]
        self.rounds = make_rounds(buckets, self.round_bytes)
        firsts = [self.groups[bucket.group].params[bucket.members[0]] for bucket in buckets]
        self._peers = [peers_of(mesh) for mesh in meshes(firsts)]
        plain = {param.device for param in firsts if not is_dtensor(param)}
        if self.replicas is not None:
            self._peers.extend(Peers((self.replicas,), device) for device in plain)
        # with matrices larger than a round, one round at a time is all that there is room for
        self._overlap = all(matrix_bytes(bucket) <= self.round_bytes for bucket in buckets)
        self._devices = {bucket.device for bucket in buckets}
        for part in (part for parts in self.rounds for part in parts):
            part.blocks.append(part)  # parts share the list of their bucket
        # Who looks at the comparison of this step before matrices are sent, on a CPU, need not send X to owners that
        # have it. A model of one round can afford to keep it.
        keeps = len(self.rounds) == 1 and len(self._peers) == 1 and all(map(can_look, map(local_part, firsts)))
        self._kept = {part: Kept() for part in self.rounds[0] if _can_keep(part)} if keeps else {}
        routes = {(part.process_group, part.device) for parts in self.rounds for part in parts}
        alone = self._kept and {(group, peers.device) for peers in self._peers for group in peers.groups} == routes
        self._travels, self._check.sizes = routes.pop() if alone and len(routes) == 1 else None, None
        self._is_complete = False
        self._key = [*key[:-1], False]

    def _plan_group(self, rule: UpdateRule, positions: list[int]) -> GroupPlan:
        """The plan of the parameters at some positions of a group."""
        group, all_names = rule.group, names_of(rule.group)
        params, names = [group["params"][i] for i in positions], [all_names[i] for i in positions]
        labels = [parameter_name(group, i, f"group {rule.index}") for i in positions]
        by_columns = not rule.base.whole_matrix and bool(rule.method.steps_columns(group))
        strategy = partial(choose, by_columns=by_columns)
        view = View.of(group["view"]).scaled(group["scale"])
        local, buckets = make_sharded_buckets(params, view, group["side"], strategy, self.replicas)
        named = [
            replace(
                bucket,
                group=rule.index,
                names=tuple(names[i] for i in bucket.members),
                form=_form(rule, bucket.layout, bucket.strategy, bucket.device.type),
                communication_dtype=self.communication_dtype
                if rule.base.normalized and not bucket.dtype.is_complex
                else None,
            )
            for bucket in buckets
        ]
        return GroupPlan(rule.index, params, names, labels, local, named)


class BucketTensors(NamedTuple):
    """The local tensors of the members of a bucket: where its matrices lie in them.

    Attributes:
        params: of the parameters.
        buffers: of their states, by name.
        steps: what counts the steps of each member, if this bucket counts them.
        all_steps: the same, as few tensors.
    """

    params: list[Tensor]
    buffers: dict[str, list[Tensor]]
    steps: list[Tensor]
    all_steps: list[Tensor]


class _GroupWork:
    """What the steps of a group work on: looked up once, as that takes longer than to use it."""

    def __init__(self, rule: UpdateRule, plan: GroupPlan, states: MutableMapping[Tensor, Any]) -> None:
        self.rule, self.plan = rule, plan
        self.params = local_tensors(plan.params)
        self.states: list[dict[str, Tensor]] = [states[param] for param in plan.params]
        for param, state in zip(plan.params, self.states, strict=True):
            if not rule.kinds.keys() <= state.keys():
                init_state(param, rule.kinds, rule.group, state)
        self._entries = [value for state in self.states for value in state.values()]
        self._scalars = [tensor for tensor in local_tensors(self._entries) if tensor.ndim == 0 and has_address(tensor)]
        self._addresses = list(map(Tensor.data_ptr, self._scalars))
        self._tensors: dict[ShardedBucket, BucketTensors] = {}
        self.grads: list[Tensor | None] = []
        self._gathered: list[Tensor] = []
        self._missing = False

    def serves(self, states: MutableMapping[Tensor, Any]) -> bool:
        """Whether parameters and states are the tensors that were looked up."""
        return (
            same_tensors(local_tensors(self.plan.params), self.params)
            and all(map(is_, map(states.get, self.plan.params), self.states))
            and same_tensors(self._entries, list(chain.from_iterable(map(dict.values, self.states))))
            and self._addresses == list(map(Tensor.data_ptr, self._scalars))
        )

    def start(self, rule: UpdateRule) -> None:
        """Take the gradients of a step."""
        self.rule, self.grads = rule, local_gradients(self.plan.params)
        self._missing = any(grad is None for grad in self.grads)
        # what has no gradient here is to be skipped on all ranks, as if that were not finite
        pairs = zip(self.params, self.grads, strict=True)
        self._gathered = [torch.full_like(param, torch.nan) if grad is None else grad for param, grad in pairs]

    def tensors(self, bucket: ShardedBucket) -> BucketTensors:
        """Those of a bucket."""
        if bucket not in self._tensors:
            names = [*self.rule.kinds, *(["master"] if bucket.half else [])]
            buffers = {}
            for name in names:
                of_all = local_tensors([state[name] for state in self.states])
                values = name in self.rule.matrix_values
                members = bucket.members_of(of_all, values)
                buffers[name] = together(members) if values else members
            steps = [self.states[i]["step"] for i in bucket.members] if bucket.counts_steps else []
            params = bucket.members_of(self.params)
            self._tensors[bucket] = BucketTensors(params, buffers, steps, together(steps))
        return self._tensors[bucket]

    def steps(self, bucket: ShardedBucket, kept: Kept | None) -> Steps:
        """The coroutine that steps one bucket: gather, step by its strategy, write."""
        params, buffers, steps, counters = self.tensors(bucket)
        if self._missing:
            members = zip(steps, bucket.members, strict=False)
            counters = [step for step, member in members if self.grads[member] is not None]
        if bucket.count == 0:
            _count(counters)
            return
        whole = bucket.gather(params) if kept is None or kept.pieces is None else kept.pieces
        if bucket.half:
            whole = newest(whole, bucket.gather(buffers["master"]))
        x = whole if bucket.scale == 1 else whole / bucket.scale
        grad = bucket.gather(bucket.members_of(self._gathered))
        grad = grad.to(x.dtype) if bucket.scale == 1 else grad.to(x.dtype) * bucket.scale
        lr = self.rule.group["lr"]
        if isinstance(lr, Tensor):
            lr = lr.to(bucket.device, bucket.real_dtype).reshape(())
        else:  # filled in on the device: a copy would wait for it
            lr = torch.full((), lr, dtype=bucket.real_dtype, device=bucket.device)
        state = {
            name: bucket.gather_values(buffers[name])
            if name in self.rule.matrix_values
            else bucket.gather(buffers[name])
            for name in self.rule.kinds
        }
        new_x, new_state = yield from step_bucket(self.rule, bucket, x, grad, state, lr, kept)
        if bucket.scale != 1:
            new_x = rescaled(new_x, whole, bucket.scale)
        bucket.write_(params, new_x)
        if kept is not None:
            kept.pieces = new_x
        if bucket.half:
            bucket.write_(buffers["master"], new_x)
        for name, value in new_state.items():
            bucket.write_(buffers[name], value)
        _count(counters)

    def local_work(self) -> LocalWork:
        """What is left: parameters whose matrices are whole on this rank."""
        work, empty = LocalWork([], [], []), []
        for i in self.plan.local:
            grad, param, state = self.grads[i], self.params[i], self.states[i]
            if grad is None:
                continue
            if grad.numel() == 0:
                empty.append(state["step"])
                continue
            work.params.append(param)
            work.grads.append(grad)
            # a parameter that needs no master copy is its own
            names = self.rule.state_names
            work.states.extend([local_part(state[name]) if name in state else param for name in names])
        _count(empty)
        return work


def _can_keep(part: ShardedBucket) -> bool:
    """Whether owners have X as the parameters hold it: not where these hold multiples of it, or fewer digits."""
    return part.strategy == "whole" and part.scale == 1 and not part.half


def _form(rule: UpdateRule, layout: Layout, strategy: str, device: str) -> str:
    form: str = rule.method.form(layout.p, layout.n, rule.group, device)
    return "direct-p" if strategy not in ("whole", "local") and form in FORMS else form


def _count(steps: list[Tensor]) -> None:
    if steps:
        torch._foreach_add_(steps, 1)
