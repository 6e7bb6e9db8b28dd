"""The step of parameters that are DTensors."""

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from orthoptim.distributed import jobs
from orthoptim.distributed.agreement import missing_gradient
from orthoptim.distributed.pieces import Pieces
from orthoptim.distributed.plans import GroupPlan, Plans
from orthoptim.distributed.state import init_state, local_values
from orthoptim.distributed.wire import Job, Steps, run
from orthoptim.optim.checks import parameter_name
from orthoptim.views import compute_dtype, full_precision, real_dtype

if TYPE_CHECKING:
    from orthoptim.optim.orthoptimizer import Orthoptimizer


class Work(NamedTuple):
    """What this rank holds of the DTensors of a group, as plain tensors."""

    plan: GroupPlan
    params: list[Tensor]
    grads: list[Tensor | None]
    columns: dict[str, list[Tensor]]  # the state, by name


class ShardedStep:
    """Steps the DTensors of an optimizer.

    Args:
        optimizer: whose parameters are stepped.
    """

    def __init__(self, optimizer: "Orthoptimizer") -> None:
        self._optimizer = optimizer
        self.plans = Plans(optimizer)
        self._locals: dict[DTensor, tuple[list[Tensor | None], list[Tensor]]] = {}
        self._deferred: list[tuple[Tensor, dist.ProcessGroup, list[bool]]] = []

    @torch.no_grad()
    def __call__(self) -> None:
        """Step all DTensors of constrained groups that have a gradient.

        Those whose matrices are cut come first: what is found wrong with them is found before anything is changed.
        """
        self._raise_deferred()
        works = [self._work(plan) for plan in self.plans()]
        if not works:
            return
        with full_precision(works[0].params[0]):
            self._step_cut(works)
            for work in works:
                self._step_local(work)

    def _work(self, plan: GroupPlan) -> Work:
        names = self._optimizer._state_names(plan.group)
        rows = []
        for param in plan.params:
            state = self._optimizer.state[param]
            sources = [state.get(name) for name in names]
            known = self._locals.get(param)
            if known is None or not _same(known[0], sources):
                init_state(param, self._optimizer._kinds(plan.group), plan.group, state)
                sources = [state.get(name) for name in names]
                # a parameter that needs no master copy is its own
                known = sources, [local_values(param if source is None else source) for source in sources]
                self._locals[param] = known
            rows.append(known[1])
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        params = [param.to_local() for param in plan.params]
        if any(compute_dtype(param.dtype) == param.dtype for param in params):
            own = zip(params, columns["master"], strict=True)
            columns["master"] = [a if compute_dtype(a.dtype) == a.dtype else b for a, b in own]
        return Work(plan, params, [_local_gradient(param) for param in plan.params], columns)

    def _step_cut(self, works: list[Work]) -> None:
        todo = [
            Job(pieces.group, pieces.device, self._steps(pieces, self._method(work.plan), work))
            for work in works
            for pieces in work.plan.cut
        ]
        if not todo:
            return
        present = [grad is not None for work in works for grad in work.grads]

        def check(group: dist.ProcessGroup, differs: Tensor) -> None:
            if differs.device.type == "cpu":
                self._raise_if(differs, group, present)
            else:  # what lacks a gradient somewhere is skipped everywhere; to say so now would wait for the device
                self._deferred.append((differs, group, present))

        digest = hashlib.blake2b(bytes(present), digest_size=8).digest()
        run(todo, int.from_bytes(digest), check)
        counted = [
            work.columns["step"][i]
            for work in works
            for pieces in work.plan.cut
            for i in pieces.members
            if work.grads[i] is not None
        ]
        if counted:
            torch._foreach_add_(counted, 1)

    def _step_local(self, work: Work) -> None:
        """Matrices that are whole here are stepped as those of plain tensors are."""
        params, grads, states, empty = [], [], [], []
        for i in work.plan.local:
            grad = work.grads[i]
            if grad is None:
                continue
            if grad.numel() == 0:
                empty.append(work.columns["step"][i])
                continue
            params.append(work.params[i])
            grads.append(grad)
            states.extend([column[i] for column in work.columns.values()])
        if params:
            self._optimizer._step_group(work.plan.group, params, grads, states)
        if empty:
            torch._foreach_add_(empty, 1)

    def _steps(self, pieces: Pieces, method: jobs.Method, work: Work) -> Steps:
        """The coroutine that steps one bucket: gather, move as the strategy says, write."""
        per_matrix = jobs.per_matrix_names(method.kinds)
        params = pieces.pick(work.params)
        columns = {name: pieces.pick(column) for name, column in work.columns.items()}
        x = pieces.gather(params)
        if pieces.half:
            master = pieces.gather(columns["master"])
            x = torch.where(master.to(x.dtype) == x, master, x.to(master.dtype))  # as somebody may have written to it
        # what has no gradient here is to be skipped on all ranks, as if that were not finite
        given = [work.grads[i] for i in pieces.members]
        grads = [
            torch.full_like(param, torch.nan) if grad is None else grad
            for param, grad in zip(params, given, strict=True)
        ]
        lr = torch.as_tensor(method.group["lr"], dtype=real_dtype(pieces.dtype), device=pieces.device).reshape(())
        state = {
            name: (pieces.gather_scalars if name in per_matrix else pieces.gather)(columns[name])
            for name in method.kinds
        }
        held = jobs.Held(x, pieces.gather(grads).to(x.dtype), state, lr)
        new_x, new_state, finite = yield from jobs.STRATEGIES[pieces.strategy](method, held, pieces)
        new_x = jobs.blend(finite, new_x, x)
        pieces.write_(params, new_x)
        if pieces.half:
            pieces.write_(columns["master"], new_x)
        for name, value in new_state.items():
            write = pieces.write_scalars_ if name in per_matrix else pieces.write_
            write(columns[name], jobs.blend(finite, value, state[name]))

    def _method(self, plan: GroupPlan) -> jobs.Method:
        optimizer, group = self._optimizer, plan.group
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
        places = {
            param: (group, position, f"group {index}")
            for index, group in enumerate(self._optimizer.param_groups)
            for position, param in enumerate(group["params"])
        }
        return [parameter_name(*places[param]) for plan in self.plans() for param in plan.params]


def _same(a: list[Tensor | None], b: list[Tensor | None]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _local_gradient(param: DTensor) -> Tensor | None:
    grad = param.grad
    if grad is None:
        return None
    assert isinstance(grad, DTensor)
    if grad.placements != param.placements:  # such as a pending sum
        grad = grad.redistribute(placements=param.placements)
    return grad.to_local()
