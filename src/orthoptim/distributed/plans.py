"""The plan of a sharded step: made once, shown by ``opt.plan()``, and made again when the param groups change."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed.tensor import DTensor

from orthoptim.base import Base
from orthoptim.distributed.pieces import Pieces, make_pieces
from orthoptim.distributed.rounds import make_rounds
from orthoptim.distributed.strategy import choose
from orthoptim.optim.buckets import make_buckets
from orthoptim.optim.telemetry import Plan
from orthoptim.stiefel import FORMS

if TYPE_CHECKING:
    from orthoptim.optim.orthoptimizer import Orthoptimizer


class GroupPlan(NamedTuple):
    """How the DTensors of one param group are stepped."""

    group: dict[str, Any]
    params: list[DTensor]
    local: list[int]  # places of those whose matrices are not cut
    cut: list[Pieces]


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
        self.rounds: list[list[tuple[GroupPlan, Pieces]]] = []

    def __call__(self) -> list[GroupPlan]:
        """The plans as they are now.

        A parameter that is frozen later on stays in them, without a gradient; one that is thawed makes them anew.
        """
        key = tuple(self._key_of(group) for group in self._optimizer.param_groups)
        if key != self._key or any(param.requires_grad for param in self._frozen):
            self._make()
            self._key = key
        return self._plans

    def shown(self) -> list[Plan]:
        """For :meth:`Orthoptimizer.plan`."""
        optimizer, shown = self._optimizer, []
        plans = self()
        for index, group in enumerate(optimizer.param_groups):
            for plan in plans:
                if plan.group is not group:
                    continue
                local = [plan.params[i].to_local() for i in plan.local]
                whole = [param for param in local if param.numel()]
                for bucket in make_buckets(whole, group["view"], group["side"]):
                    form = optimizer.form(bucket.p, bucket.n, group)
                    kind = (index, bucket.matrices, bucket.p, bucket.n, bucket.dtype, bucket.device)
                    shown.append(Plan(*kind, form, len(bucket.blocks)))
                for pieces in plan.cut:
                    p, n = pieces.layout.p, pieces.layout.n
                    form = optimizer.form(p, n, group)
                    if pieces.strategy != "whole" and form in FORMS:
                        form = "direct-p"
                    kind = (index, pieces.count, p, n, pieces.dtype, pieces.device)
                    if pieces.count == 0:
                        continue
                    blocks = sum(part.layout is pieces.layout for some in self.rounds for _, part in some)
                    shown.append(Plan(*kind, form, blocks, pieces.strategy))
        return shown

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
        return Base.named(group["base"]).entrywise and self._optimizer.steps_columns(group)

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
                self._plans.append(GroupPlan(group, params, *make_pieces(params, group["view"], group["side"], how)))
        plan_of = {pieces.layout: plan for plan in self._plans for pieces in plan.cut}  # parts share that of the whole
        cut = [pieces for plan in self._plans for pieces in plan.cut]
        self.rounds = [[(plan_of[part.layout], part) for part in some] for some in make_rounds(cut)]
