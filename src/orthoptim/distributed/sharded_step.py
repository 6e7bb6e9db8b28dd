"""The step of parameters that are DTensors."""

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from orthoptim.distributed import strategies
from orthoptim.distributed.collectives import Job, Steps, run
from orthoptim.distributed.handshake import missing_gradient
from orthoptim.distributed.sharded_buckets import ShardedBucket
from orthoptim.distributed.sharded_plan import GroupPlan, Plans
from orthoptim.distributed.sharded_state import init_state, local_values
from orthoptim.distributed.stacked_state import StackedState
from orthoptim.engine.naming import parameter_name
from orthoptim.precision import full_precision
from orthoptim.tensors import real_dtype
from orthoptim.views import View

if TYPE_CHECKING:
    from orthoptim.optim.orthoptimizer import Orthoptimizer


class Work(NamedTuple):
    """What this rank holds of the DTensors of a group, as plain tensors."""

    plan: GroupPlan
    params: list[Tensor]
    grads: list[Tensor | None]


class ShardedStep:
    """Steps the DTensors of an optimizer.

    Args:
        optimizer: whose parameters are stepped.
    """

    def __init__(self, optimizer: "Orthoptimizer") -> None:
        self._optimizer = optimizer
        self.plans = Plans(optimizer)
        self._holdings: dict[ShardedBucket, StackedState] = {}
        self._deferred: list[tuple[Tensor, dist.ProcessGroup, list[bool]]] = []

    @torch.no_grad()
    def __call__(self) -> None:
        """Step all DTensors of constrained groups that have a gradient.

        Those whose matrices are cut come first: what is found wrong with them is found before anything is changed.
        """
        self._raise_deferred()
        works = [
            # not to_local(), which makes of a parameter a new one: that takes longer than to step it
            Work(
                plan, [param._local_tensor for param in plan.params], [_local_gradient(param) for param in plan.params]
            )
            for plan in self.plans()
        ]
        if not works:
            return
        with full_precision(works[0].params[0]):
            self._step_cut(works)
            for work in works:
                self._step_local(work)

    def _step_cut(self, works: list[Work]) -> None:
        rounds = self.plans.rounds
        parts = {pieces for some in rounds for _, pieces in some}
        if len(self._holdings) > len(parts):  # there is a new plan
            self._holdings = {pieces: held for pieces, held in self._holdings.items() if pieces in parts}
        if not rounds:
            return
        work_of = {id(work.plan): (work, self._method(work.plan)) for work in works}
        present = [grad is not None for work in works for grad in work.grads]

        def check(group: dist.ProcessGroup, differs: Tensor) -> None:
            if differs.is_meta:  # a step that is only traced has no values to differ
                return
            if differs.device.type == "cpu":
                self._raise_if(differs, group, present)
            else:  # what lacks a gradient somewhere is skipped everywhere; to say so now would wait for the device
                self._deferred.append((differs, group, present))

        digest = hashlib.blake2b(bytes(present), digest_size=8).digest()
        checked: set[dist.ProcessGroup] = set()
        for some in rounds:
            todo = []
            for plan, pieces in some:
                work, method = work_of[id(plan)]
                todo.append(Job(pieces.group, pieces.device, self._steps(pieces, method, work)))
            run(todo, int.from_bytes(digest), check, checked)

    def _step_local(self, work: Work) -> None:
        """Matrices that are whole here are stepped as those of plain tensors are."""
        plan, names = work.plan, self._optimizer._state_names(work.plan.group)
        kinds = self._optimizer._kinds(plan.group)
        params, grads, states, empty = [], [], [], []
        views: list[View] | None = [] if plan.views else None
        for i in plan.local:
            grad, param = work.grads[i], work.params[i]
            if grad is None:
                continue
            state = self._optimizer.state[plan.params[i]]
            if not kinds.keys() <= state.keys():
                init_state(plan.params[i], kinds, plan.group, state)
            if grad.numel() == 0:
                empty.append(state["step"])
                continue
            params.append(param)
            grads.append(grad)
            if views is not None:
                views.append(plan.views[i])
            # a parameter that needs no master copy is its own
            states.extend([local_values(state[name]) if name in state else param for name in names])
        if params:
            self._optimizer._step_group(plan.group, params, grads, states, views)
        if empty:
            torch._foreach_add_(empty, 1)

    def _steps(self, pieces: ShardedBucket, method: strategies.Method, work: Work) -> Steps:
        """The coroutine that steps one bucket: gather, move as the strategy says, write."""
        per_matrix = strategies.per_matrix_names(method.kinds)
        params = pieces.pick(work.params)
        if pieces not in self._holdings:
            self._holdings[pieces] = StackedState(pieces, [work.plan.params[i] for i in pieces.members])
        held = self._holdings[pieces](self._optimizer.state, method.kinds, method.group)
        given = [work.grads[i] for i in pieces.members]
        if pieces.count == 0:
            _count(held["step"], given, pieces)
            return
        x = pieces.gather(params)
        if pieces.half:
            master = pieces.matrices(held["master"])
            x = torch.where(master.to(x.dtype) == x, master, x.to(master.dtype))  # as somebody may have written to it
        lr = torch.as_tensor(method.group["lr"], dtype=real_dtype(pieces.dtype), device=pieces.device).reshape(())
        state = {
            name: pieces.values(held[name]) if name in per_matrix else pieces.matrices(held[name])
            for name in method.kinds
        }
        # what has no gradient here is to be skipped on all ranks, as if that were not finite
        grads = [
            torch.full_like(param, torch.nan) if grad is None else grad
            for param, grad in zip(params, given, strict=True)
        ]
        before = strategies.Held(x, pieces.gather(grads).to(x.dtype), state, lr)
        new_x, new_state = yield from strategies.STRATEGIES[pieces.strategy](method, before, pieces)
        pieces.write_(params, new_x)
        if pieces.half:
            pieces.write_stack_(held["master"], new_x)
        for name, value in new_state.items():
            pieces.write_stack_(held[name], value)
        _count(held["step"], given, pieces)

    def _method(self, plan: GroupPlan) -> strategies.Method:
        optimizer, group = self._optimizer, plan.group
        return strategies.Method(type(optimizer), group, optimizer._hyperparameters(group), optimizer._kinds(group))

    def _raise_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for differs, group, present in deferred:
            self._raise_if(differs, group, present)

    def _raise_if(self, differs: Tensor, group: dist.ProcessGroup, present: list[bool]) -> None:
        if bool(differs):
            raise RuntimeError(missing_gradient(self._names(), present, group))

    def _names(self) -> list[str]:
        """What to call the parameters of all plans in messages."""
        places = {
            param: (group, position, f"group {index}")
            for index, group in enumerate(self._optimizer.param_groups)
            for position, param in enumerate(group["params"])
        }
        return [parameter_name(*places[param]) for plan in self.plans() for param in plan.params]


def _count(steps: Tensor, grads: list[Tensor | None], pieces: ShardedBucket) -> None:
    """Add one to the number of steps of those that have a gradient."""
    present = [grad is not None for grad in grads]
    if pieces.counts_steps:
        steps.add_(1 if all(present) else torch.tensor(present, device=steps.device))


def _local_gradient(param: DTensor) -> Tensor | None:
    grad = param.grad
    if grad is None:
        return None
    assert isinstance(grad, DTensor)
    ours, theirs = param._spec, grad._spec
    if theirs is not ours and theirs.placements != ours.placements:  # such as a pending sum
        grad = grad.redistribute(placements=param.placements)
    return grad._local_tensor
