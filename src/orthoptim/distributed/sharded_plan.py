"""The plan of a sharded step: made once, shown by ``opt.plan()``, and made again when the param groups change."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed.tensor import DTensor

from orthoptim.base import Base
from orthoptim.distributed.choice import choose
from orthoptim.distributed.rounds import make_rounds
from orthoptim.distributed.sharded_buckets import ShardedBucket, make_sharded_buckets
from orthoptim.engine.buckets import make_buckets
from orthoptim.engine.naming import common_name, names_of
from orthoptim.engine.telemetry import Plan, plans_of
from orthoptim.stiefel import FORMS

if TYPE_CHECKING:
    from orthoptim.optim.orthoptimizer import Orthoptimizer


class GroupPlan(NamedTuple):
    """How the DTensors of one param group are stepped."""

    group: dict[str, Any]
    params: list[DTensor]
    local: list[int]  # places of those whose matrices are not cut
    cut: list[ShardedBucket]


class Plans:
    """The plans of the param groups that have DTensors.

    Args:
        optimizer: whose param groups they are.

    Attributes:
        rounds: parts of the buckets whose matrices are cut, with their plans, in the order of the step.
    """

    def __init__(self, optimizer: "Orthoptimizer") -> None:
        self._optimizer = optimizer
        self._key: tuple[Any, ...] = ()
        self._frozen: list[DTensor] = []
        self._plans: list[GroupPlan] = []
        self.rounds: list[list[tuple[GroupPlan, ShardedBucket]]] = []

    def __call__(self) -> list[GroupPlan]:
        """The plans as they are now.

        A parameter that is frozen later on stays in them, without a gradient; one that is thawed makes them anew.
        """
        key = tuple(self._key_of(group) for group in self._optimizer.param_groups)
        if key != self._key or any(param.requires_grad for param in self._frozen):
            self._make()
            self._key = key
        return self._plans

    def shown(self, per_parameter: bool = False) -> list[Plan]:
        """For :meth:`Orthoptimizer.plan`."""
        plans = {id(plan.group): plan for plan in self()}
        rows: list[Plan] = []
        for index, group in enumerate(self._optimizer.param_groups):
            if id(group) in plans:
                rows.extend(self._rows(plans[id(group)], index, per_parameter))
        return rows

    def _rows(self, plan: GroupPlan, index: int, per_parameter: bool) -> list[Plan]:
        """Those of one group: its local buckets, then the others."""
        group, form_of = plan.group, self._optimizer.form
        name_of = {id(param): name for name, param in zip(names_of(group), group["params"], strict=True)}
        names = [name_of[id(param)] for param in plan.params]
        pairs = [(names[i], plan.params[i].to_local()) for i in plan.local]
        named = [(name, local) for name, local in pairs if local.numel()]
        rows: list[Plan] = []
        for bucket in make_buckets([local for _, local in named], group["view"], group["side"]):
            rows.extend(plans_of(bucket, named, group, index, form_of(bucket.p, bucket.n, group), per_parameter))
        for pieces in plan.cut:
            if pieces.count == 0:
                continue
            p, n = pieces.layout.p, pieces.layout.n
            form = form_of(p, n, group)
            if pieces.strategy != "whole" and form in FORMS:
                form = "direct-p"
            blocks = sum(part.layout is pieces.layout for some in self.rounds for _, part in some)
            members = [names[i] for i in pieces.members]
            kind = (p, n, pieces.dtype, pieces.device, form, blocks, pieces.strategy)
            if per_parameter:
                rows.extend(Plan(index, pieces.count // len(members), *kind, name) for name in members)
            else:
                rows.append(Plan(index, pieces.count, *kind, common_name(members)))
        return rows

    def _key_of(self, group: Mapping[str, Any]) -> tuple[Any, ...]:
        if group["algorithm"] != self._optimizer.algorithm:
            return ()
        return (
            id(group),
            group["view"],
            group["side"],
            group["base"],
            self._by_columns(group),
            *map(id, group["params"]),
        )

    def _by_columns(self, group: Mapping[str, Any]) -> bool:
        return not Base.named(group["base"]).whole_matrix and self._optimizer.steps_columns(group)

    def _make(self) -> None:
        self._plans, self._frozen = [], []
        for group in self._optimizer.param_groups:
            if group["algorithm"] != self._optimizer.algorithm:
                continue
            placed = [param for param in group["params"] if isinstance(param, DTensor)]
            params = [param for param in placed if param.requires_grad]
            self._frozen.extend(param for param in placed if not param.requires_grad)
            if params:
                how = partial(choose, by_columns=self._by_columns(group))
                self._plans.append(
                    GroupPlan(group, params, *make_sharded_buckets(params, group["view"], group["side"], how))
                )
        plan_of = {pieces.layout: plan for plan in self._plans for pieces in plan.cut}  # parts share that of the whole
        cut = [pieces for plan in self._plans for pieces in plan.cut]
        self.rounds = [[(plan_of[part.layout], part) for part in some] for some in make_rounds(cut)]
