"""The plan of a sharded step: which DTensors are whole on this rank, and buckets of those whose matrices are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from orthoptim.distributed.choice import choose
from orthoptim.distributed.layout import Layout, local_view
from orthoptim.distributed.rounds import make_rounds
from orthoptim.distributed.sharded_buckets import ShardedBucket, make_sharded_buckets
from orthoptim.engine.naming import names_of, parameter_name
from orthoptim.engine.rule import UpdateRule
from orthoptim.stiefel import FORMS
from orthoptim.tensors import is_dtensor, local_part
from orthoptim.views import View

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class GroupPlan:
    """How the DTensors of one param group are stepped.

    Attributes:
        index: that of the group.
        params: those that require a gradient.
        names: what to call them in tables.
        labels: what to call them in messages.
        local: positions of those whose matrices are whole on this rank.
        sharded: buckets of the others.
    """

    index: int
    params: list[DTensor]
    names: list[str]
    labels: list[str]
    local: list[int]
    sharded: list[ShardedBucket]

    def local_parts(self) -> list[Tensor]:
        """What this rank holds of the parameters whose matrices are whole here."""
        return [local_part(self.params[i]) for i in self.local]


class ShardedPlan:
    """The plans of the param groups that have DTensors; made again when these change.

    Attributes:
        groups: the plans by index of the group.
        rounds: parts of the buckets whose matrices are cut, in the order of the step.
        local_views: for the local part of a parameter that a view divides, by ``id``, the view of that part.
    """

    def __init__(self) -> None:
        self.groups: dict[int, GroupPlan] = {}
        self.rounds: list[list[ShardedBucket]] = []
        self.local_views: dict[int, View] = {}
        self._key: list[Any] = []
        self._frozen: list[DTensor] = []

    def update(self, rules: Sequence[UpdateRule]) -> None:
        """Make the plans again if something they were made from has changed.

        A parameter that is frozen later on stays in its plan, without a gradient; one that is thawed makes all anew.
        """
        key = [_key(rule) for rule in rules]
        if key != self._key or any(param.requires_grad for param in self._frozen):
            self._make(rules)
            self._key = key

    def _make(self, rules: Sequence[UpdateRule]) -> None:
        self.groups, self.local_views, self._frozen = {}, {}, []
        for rule in rules:
            sharded = [i for i, param in enumerate(rule.group["params"]) if is_dtensor(param)]
            self._frozen.extend(param for i in sharded if not (param := rule.group["params"][i]).requires_grad)
            positions = [i for i in sharded if rule.group["params"][i].requires_grad]
            if positions:
                plan = self.groups[rule.index] = _plan_group(rule, positions)
                view = View.of(rule.group["view"])
                if view.is_divided:
                    whole = [plan.params[i] for i in plan.local if local_part(plan.params[i]).numel()]
                    self.local_views |= {id(local_part(param)): local_view(param, view) for param in whole}
        buckets = {bucket.layout: bucket for plan in self.groups.values() for bucket in plan.sharded}
        self.rounds = make_rounds(list(buckets.values()))
        for part in (part for parts in self.rounds for part in parts):
            buckets[part.layout].blocks.append(part)  # parts share the layout of their bucket


def _plan_group(rule: UpdateRule, positions: list[int]) -> GroupPlan:
    """The plan of the parameters at some positions of a group."""
    group, all_names = rule.group, names_of(rule.group)
    params, names = [group["params"][i] for i in positions], [all_names[i] for i in positions]
    labels = [parameter_name(group, i, f"group {rule.index}") for i in positions]
    strategy = partial(choose, by_columns=_by_columns(rule))
    local, buckets = make_sharded_buckets(params, View.of(group["view"]), group["side"], strategy)
    named = [
        replace(
            bucket,
            group=rule.index,
            names=tuple(names[i] for i in bucket.members),
            form=_form(rule, bucket.layout, bucket.strategy, bucket.device.type),
            blocks=[],
        )
        for bucket in buckets
    ]
    return GroupPlan(rule.index, params, names, labels, local, named)


def _form(rule: UpdateRule, layout: Layout, strategy: str, device: str) -> str:
    form: str = rule.method.form(layout.p, layout.n, rule.group, device)
    return "direct-p" if strategy != "whole" and form in FORMS else form


def _by_columns(rule: UpdateRule) -> bool:
    return not rule.base.whole_matrix and bool(rule.method.steps_columns(rule.group))


def _key(rule: UpdateRule) -> tuple[Any, ...]:
    return (rule.index, rule.options, _by_columns(rule), *map(id, rule.group["params"]))
