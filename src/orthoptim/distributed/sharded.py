"""The step of parameters that are DTensors."""

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from orthoptim.base import Base
from orthoptim.distributed import jobs
from orthoptim.distributed.agreement import missing_gradient
from orthoptim.distributed.pieces import Pieces, choose_owners, make_pieces
from orthoptim.distributed.state import init_state, local_values
from orthoptim.distributed.strategy import choose
from orthoptim.distributed.wire import Job, Steps, run
from orthoptim.optim.buckets import make_buckets
from orthoptim.optim.checks import parameter_name
from orthoptim.optim.telemetry import Plan
from orthoptim.views import compute_dtype, full_precision, real_dtype

if TYPE_CHECKING:
    from orthoptim.optim.orthoptimizer import Orthoptimizer


class GroupPlan(NamedTuple):
    """How the DTensors of one param group are stepped."""

    params: list[DTensor]
    local: list[int]  # places of those whose matrices are not cut
    cut: list[Pieces]


class ShardedStep:
    """Steps the DTensors of an optimizer. The plan is made once, and again when the param groups change.

    Args:
        optimizer: whose parameters are stepped.
    """

    def __init__(self, optimizer: "Orthoptimizer") -> None:
        self._optimizer = optimizer
        self._key: tuple[Any, ...] = ()
        self._plans: list[GroupPlan] = []
        self._deferred: list[tuple[Tensor, dist.ProcessGroup, list[bool]]] = []

    def plans(self) -> list[GroupPlan]:
        """One for each param group, empty for those without DTensors and for ordinary ones."""
        key = tuple(self._key_of(group) for group in self._optimizer.param_groups)
        if key != self._key:
            self._plans = self._make_plans()
            self._key = key
        return self._plans

    @torch.no_grad()
    def __call__(self) -> None:
        """Step all DTensors of constrained groups that have a gradient."""
        self._raise_deferred()
        groups = [
            (group, plan, self._columns(plan, group))
            for group, plan in zip(self._optimizer.param_groups, self.plans(), strict=True)
            if plan.params
        ]
        if not groups:
            return
        present = [param.grad is not None for _, plan, _ in groups for param in plan.params]
        todo = [
            Job(pieces.group, pieces.device, self._steps(pieces, self._method(group), plan, columns))
            for group, plan, columns in groups
            for pieces in plan.cut
        ]
        with full_precision(groups[0][1].params[0]):
            self._run(todo, present)
            for group, plan, columns in groups:
                self._step_local(plan, group, columns)
                members = [i for pieces in plan.cut for i in pieces.members if plan.params[i].grad is not None]
                if members:
                    torch._foreach_add_([columns["step"][i] for i in members], 1)

    def _run(self, todo: list[Job], present: list[bool]) -> None:
        if todo:

            def check(group: dist.ProcessGroup, differs: Tensor) -> None:
                if differs.device.type == "cpu":
                    self._raise_if(differs, group, present)
                else:  # what lacks a gradient somewhere is skipped everywhere; to say so now would wait for the device
                    self._deferred.append((differs, group, present))

            digest = hashlib.blake2b(bytes(present), digest_size=8).digest()
            run(todo, int.from_bytes(digest), check)

    def shown(self) -> list[Plan]:
        """For :meth:`Orthoptimizer.plan`."""
        optimizer, shown = self._optimizer, []
        for index, (group, plan) in enumerate(zip(optimizer.param_groups, self.plans(), strict=True)):
            local = [plan.params[i].to_local() for i in plan.local]
            whole = [param for param in local if param.numel()]
            for bucket in make_buckets(whole, group["view"], group["side"]) if whole else []:
                form = optimizer.form(bucket.p, bucket.n, group)
                kind = (index, bucket.matrices, bucket.p, bucket.n, bucket.dtype, bucket.device)
                shown.append(Plan(*kind, form, len(bucket.blocks)))
            for pieces in plan.cut:
                p, n = pieces.layout.p, pieces.layout.n
                form = optimizer.form(p, n, group) if pieces.strategy == "whole" else "direct-p"
                kind = (index, pieces.count, p, n, pieces.dtype, pieces.device)
                shown.append(Plan(*kind, form, 1, pieces.strategy))
        return shown

    def _method(self, group: dict[str, Any]) -> jobs.Method:
        optimizer = self._optimizer
        return jobs.Method(type(optimizer), group, optimizer._hyperparameters(group), optimizer._kinds(group))

    def _raise_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for differs, group, present in deferred:
            self._raise_if(differs, group, present)

    def _raise_if(self, differs: Tensor, group: dist.ProcessGroup, present: list[bool]) -> None:
        if bool(differs):
            raise RuntimeError(missing_gradient(self._names(), present, group))

    def _names(self) -> list[str]:
        """What to call the parameters of all plans in messages."""
        return [
            parameter_name(group, position, f"group {index}")
            for index, (group, plan) in enumerate(zip(self._optimizer.param_groups, self.plans(), strict=True))
            for position, param in enumerate(group["params"])
            if any(param is mine for mine in plan.params)
        ]

    def _key_of(self, group: Mapping[str, Any]) -> tuple[Any, ...]:
        params = group["params"]
        if group["algorithm"] != self._optimizer.algorithm:
            return ()
        options = (group["view"], group["side"], group["base"], self._by_columns(group))
        return (*options, *map(id, params), *(param.requires_grad for param in params))

    def _by_columns(self, group: Mapping[str, Any]) -> bool:
        return Base.named(group["base"]).entrywise and self._optimizer.steps_columns(group)

    def _make_plans(self) -> list[GroupPlan]:
        plans: list[GroupPlan] = []
        for group in self._optimizer.param_groups:
            mine = group["algorithm"] == self._optimizer.algorithm
            params = [p for p in group["params"] if isinstance(p, DTensor) and p.requires_grad] if mine else []
            by_columns = mine and self._by_columns(group)
            local, cut = make_pieces(
                params, group.get("view", ""), group.get("side", ""), partial(choose, by_columns=by_columns)
            )
            plans.append(GroupPlan(params, local, cut))
        choose_owners([pieces for plan in plans for pieces in plan.cut])
        return plans

    def _columns(self, plan: GroupPlan, group: Mapping[str, Any]) -> dict[str, list[Tensor]]:
        """What this rank holds of the state, by name."""
        names = self._optimizer._state_names(group)
        kinds = self._optimizer._kinds(group)
        columns: dict[str, list[Tensor]] = {name: [] for name in names}
        for param in plan.params:
            state = self._optimizer.state[param]
            if any(name not in state for name in names):
                init_state(param, kinds, group, state)
            for name in names:
                columns[name].append(local_values(state.get(name, param)))
        return columns

    def _step_local(self, plan: GroupPlan, group: dict[str, Any], columns: dict[str, list[Tensor]]) -> None:
        """Matrices that are whole here are stepped as those of plain tensors are."""
        params, grads, states = [], [], []
        empty = []
        for i in plan.local:
            param = plan.params[i]
            if param.grad is None:
                continue
            local = param.to_local()
            if local.numel() == 0:
                empty.append(columns["step"][i])
                continue
            params.append(local)
            grads.append(_local_gradient(param))
            # a parameter that needs no master copy is its own
            own = {"master": local} if compute_dtype(param.dtype) == param.dtype else {}
            states.extend([own.get(name, column[i]) for name, column in columns.items()])
        if params:
            self._optimizer._step_group(group, params, grads, states)
        if empty:
            torch._foreach_add_(empty, 1)

    def _steps(self, pieces: Pieces, method: jobs.Method, plan: GroupPlan, columns: dict[str, list[Tensor]]) -> Steps:
        """The coroutine that steps one bucket: gather, move as the strategy says, write."""
        params = [plan.params[i] for i in pieces.members]
        locals_ = [param.to_local() for param in params]
        held_columns = {name: pieces.pick(column) for name, column in columns.items()}
        per_matrix = jobs.per_matrix_names(method.kinds)
        x = pieces.gather(locals_)
        if pieces.half:
            master = pieces.gather(held_columns["master"])
            x = torch.where(master.to(x.dtype) == x, master, x.to(master.dtype))  # as somebody may have written to it
        grads = [
            _local_gradient(param) if param.grad is not None else torch.full_like(local, torch.nan)
            for param, local in zip(params, locals_, strict=True)
        ]
        lr = torch.as_tensor(method.group["lr"], dtype=real_dtype(pieces.dtype), device=pieces.device).reshape(())
        state = {
            name: (pieces.gather_scalars if name in per_matrix else pieces.gather)(held_columns[name])
            for name in method.kinds
        }
        held = jobs.Held(x, pieces.gather(grads).to(x.dtype), state, lr)
        new_x, new_state, finite = yield from jobs.STRATEGIES[pieces.strategy](method, held, pieces)
        new_x = jobs.blend(finite, new_x, x)
        pieces.write_(locals_, new_x)
        if pieces.half:
            pieces.write_(held_columns["master"], new_x)
        for name, value in new_state.items():
            write = pieces.write_scalars_ if name in per_matrix else pieces.write_
            write(held_columns[name], jobs.blend(finite, value, state[name]))


def _local_gradient(param: DTensor) -> Tensor:
    grad = param.grad
    assert isinstance(grad, DTensor)
    if grad.placements != param.placements:  # such as a pending sum
        grad = grad.redistribute(placements=param.placements)
    return grad.to_local()
