"""The step of matrices that are whole on this device: gather → direction → update → mask → write.

:class:`LocalStep` works through the plan of a param group, block by block. A block is one batch of matrices (B, p, n).
Nothing is written before all of a block is computed, so that a matrix is written whole, with its state, or not at all.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim import pointwise as kernels
from orthoptim.base import Base, Direction, State
from orthoptim.engine.buckets import make_plan
from orthoptim.engine.compiled import CompiledStep
from orthoptim.engine.naming import parameter_name
from orthoptim.engine.plan import BlockTensors, LocalPlan, split
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.state import newest, rescaled
from orthoptim.precision import full_precision
from orthoptim.stiefel import Update, is_deficient
from orthoptim.stiefel.batches import can_look, is_single, max_entry, pointwise, where
from orthoptim.stiefel.sums import FLAGS
from orthoptim.tensors import local_part
from orthoptim.user_warnings import warn_user
from orthoptim.views import View

FAR = (
    "{name} was far from orthonormal ({far} of {matrices} matrices): it was written after the optimizer was built, or "
    "steps without a guarantee left the manifold. Steps bring it back and are counted as rescued in drift(); a matrix "
    "without full rank does not step and is counted as skipped: call orthoptim.orthogonalize_ on it"
)


class LocalStep:
    """Steps the matrices of an optimizer that are whole on this device, and keeps the plans of its param groups."""

    def __init__(self) -> None:
        self._plans: dict[int, LocalPlan] = {}
        self._block_steps: dict[tuple[int, str], BlockStep] = {}
        self._warned: set[Tensor] = set()

    def grads(self, rule: UpdateRule, state: Mapping[Tensor, Any]) -> list[Tensor] | None:
        """The gradients of a group for :meth:`__call__`, if its last plan serves; else ``None``."""
        plan = None if torch.compiler.is_compiling() else self._plans.get(rule.index)
        return None if plan is None else plan.grads(rule, state)

    def plan(
        self,
        rule: UpdateRule,
        params: list[Tensor],
        states: list[Tensor],
        local_views: Mapping[int, View],
        state: Mapping[Tensor, Any],
    ) -> LocalPlan:
        """The last plan, if it serves; else a new one. See :func:`make_plan` for the arguments."""
        if torch.compiler.is_compiling():  # a graph keeps what was decided when it was traced
            return make_plan(rule, params, states, local_views, state)
        plan = self._plans.get(rule.index)
        if plan is None or not plan.serves(rule, params, states):
            plan = self._plans[rule.index] = make_plan(rule, params, states, local_views, state)
        return plan

    def last_plan(self, rule: UpdateRule, params: list[Tensor], local_views: Mapping[int, View]) -> LocalPlan:
        """The plan of the last step if it serves, else that of a step in which all parameters have a gradient."""
        plan = self._plans.get(rule.index)
        is_part = plan is not None and {*map(id, plan.params)} <= {*map(id, params)}
        if plan is not None and is_part and plan.serves(rule, plan.params, plan.states):
            return plan
        return self.plan(rule, [param for param in params if param.numel() > 0], [], local_views, {})

    def __call__(self, rule: UpdateRule, grads: list[Tensor], plan: LocalPlan | None = None) -> None:
        """Step the parameters of a plan, by default the last one of the group.

        Args:
            rule: how the group is updated.
            grads: the gradients of the parameters.
            plan: what to work through.
        """
        plan = self._plans[rule.index] if plan is None else plan
        grads = split(grads, plan.parts)
        with full_precision(*plan.devices, products=rule.group.get("matmul_precision") != "mixed"):
            for bucket, blocks in zip(plan.buckets, plan.blocks, strict=True):
                if bucket.kernel is not None:
                    bucket.kernel(rule, plan.members, grads, plan.columns, plan.steps)
                    continue
                step, lr = self._block_step(rule, bucket.form), plan.lr(rule.group["lr"], bucket)
                for tensors in blocks:
                    step.step_(tensors, grads, lr)
                    if step.rescued is not None:
                        counts = dict(zip(bucket.members, bucket.counts, strict=True))
                        members = [(plan.owners[i], counts[i]) for i in tensors.block.members]
                        self._warn_of_far(rule, members, step.rescued)

    def _block_step(self, rule: UpdateRule, form: str) -> "BlockStep":
        """What steps the blocks of a form; kept while the options are the same, as it holds compiled code."""
        step = self._block_steps.get((rule.index, form))
        if step is not None and (
            step.rule is rule or (step.rule.options, step.rule.kinds) == (rule.options, rule.kinds)
        ):
            step.rule = rule
            step.group.update(rule.group)  # hyperparameters of the base stand there, and are constants of a graph
            return step
        step = BlockStep(rule, form)
        if not torch.compiler.is_compiling():
            self._block_steps[rule.index, form] = step
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


class BlockStep:
    """Steps the blocks of one group.

    Args:
        rule: how the group is updated.
        form: the form of the step.
        **changes: options that take the place of those of the group.

    Attributes:
        rescued: after a step, which matrices of the block were too far away; ``None`` where none was, or nobody has
            looked.
    """

    def __init__(self, rule: UpdateRule, form: str, **changes: Any) -> None:
        self.rule, self.group = rule, {**rule.group, "form": form, **changes}
        self.rescued: Tensor | None = None
        self._compiled = CompiledStep(self) if self.group["compile"] else None

    def step_(self, tensors: BlockTensors, grads: list[Tensor], lr: Tensor) -> None:
        """Step the matrices of one block: gather, compute, write.

        Args:
            tensors: the parameters and states of the block.
            grads: the gradients of all parameters of the plan.
            lr: learning rate.
        """
        param, scale = tensors.gather("param"), tensors.block.scale
        if tensors.half:
            param = newest(param, tensors.gather("master"))
        x = param if scale == 1 else param / scale
        state = tensors.gather_state(self.rule.kinds)
        self.rescued = None
        # no name for the gathered gradient, so that its memory is free again once it is used
        if self._compiled is None or x.is_complex():  # which compilers do not fuse
            new_x, new_state = self.compute(x, tensors.gather_grads(grads, x.dtype), state, lr, tensors.largest)
        else:
            new_x, new_state = self._compiled(tensors, x, tensors.gather_grads(grads, x.dtype), state, lr)
        if scale != 1:
            new_x = rescaled(new_x, param, scale)
        for name, value in new_state.items():  # first: the last point may be one of them
            tensors.write_(name, value)
        tensors.write_("param", new_x)
        if tensors.half:
            tensors.write_("master", new_x)
        if len(tensors.steps) == 1:
            _increment_(tensors.steps[0])
        elif tensors.steps:
            torch._foreach_add_(tensors.steps, 1)

    def compute(
        self, x: Tensor, grad: Tensor, state: State, lr: Tensor, largest: float | None = None
    ) -> tuple[Tensor, State]:
        """New matrices and new state of one block; the state may be written to once all is computed.

        Args:
            x: the matrices.
            grad: their gradient.
            state: their state.
            lr: learning rate.
            largest: the largest entry that the parameters can hold, where that is less than X can.
        """
        rule, single = self.rule, is_single(x)
        updates = state["num_updates"]
        t = lr.new_full((1,), updates.item() + 1) if single else step_number(updates, lr)
        ascent = -grad if self.group["maximize"] else grad
        if rule.replaces_gradient:
            ascent = rule.method.gradient(x, ascent, self.group)
        direction, new_state = find_direction(rule.base, x, ascent, state, t, single, **rule.hyperparameters)
        del grad, ascent  # to have its memory back
        return self.descend(x, direction, new_state, state, t, lr, largest)

    def descend(
        self,
        x: Tensor,
        direction: Direction,
        new_state: State,
        state: State,
        t: Tensor,
        lr: Tensor,
        largest: float | None = None,
    ) -> tuple[Tensor, State]:
        """``compute`` from the direction on: update, mask.

        Args:
            x: the matrices.
            direction: what the base made of their gradient.
            new_state: what it made of its buffers.
            state: their state.
            t: the number of this step of each matrix.
            lr: learning rate.
            largest: see :meth:`compute`.
        """
        total = None
        if self.rule.method.decomposes:  # decompositions raise on NaN
            g = direction.whole()
            total = g.sum((-2, -1))
            direction = Direction(where(torch.isfinite(total), g, torch.zeros((), dtype=g.dtype, device=g.device)))
        update = self.rule.method.update_whole(x, direction, lr, state, t, self.group)
        new_state = {**new_state, **update.state}
        if update.finite and update.rescued is None and largest is None:
            return update.x, _count_all(state, update, new_state)
        if isinstance(update.clipped, bool):
            update = update._replace(clipped=x.new_full((1,), update.clipped, dtype=torch.bool))
        probe = _probe(direction, update, total)
        del direction, t, total
        looks = can_look(x)
        far = update.rescued if looks and update.rescued is not None and bool(update.rescued.any()) else None
        if looks and far is None and largest is None and math.isfinite(_host(probe.sum())):
            return update.x, _count_all(state, update, new_state)
        if x.device.type in kernels.DEVICES and largest is None and not torch.compiler.is_compiling():
            return self._mask_by_kernel(x, update, state, new_state, probe)
        finite = probe - probe == 0  # isfinite takes four passes
        if largest is not None:
            finite = finite & (max_entry(update.x) <= largest)
        if far is not None:
            finite = _freeze_deficient(x, far, finite)
        self.rescued = far
        if looks and not finite.all():
            lost = ~finite & (max_entry(x) > 2)  # so large that its step overflows: nothing brings it back, name it
            self.rescued = lost if far is None else far | lost
        masked = _mask(finite, new_state, state)
        for name, more in counts(update, finite).items():
            masked[name] = state[name] + more if torch.compiler.is_compiling() else state[name].add_(more)
        return where(finite, update.x, x, out=update.x), masked

    def _mask_by_kernel(
        self, x: Tensor, update: Update, state: State, new_state: State, probe: Tensor
    ) -> tuple[Tensor, State]:
        """The end of :meth:`descend` on CUDA and ROCm: a single kernel masks and counts numbers per matrix."""
        flags = _flags(update)
        numbers = [name for name in new_state if name in self.rule.matrix_values]
        names = ["num_updates", *flags, *numbers]
        written = [state[name] for name in names]
        values = [*flags.values(), *(new_state[name] for name in numbers)]
        finite = torch.empty(probe.shape, dtype=torch.bool, device=probe.device)
        kernels.write_([finite, *written], _masked, probe, *written, *values, flags=len(flags))
        entries = {name: value for name, value in new_state.items() if name not in numbers}
        masked = {**dict(zip(names, written, strict=True)), **_mask(finite, entries, state)}
        return where(finite, update.x, x, out=update.x), masked


def find_direction(
    base: type[Base], x: Tensor, grad: Tensor, state: State, t: Tensor, single: bool = False, **hyperparameters: Any
) -> tuple[Direction, State]:
    """What a base makes of the gradient of whole matrices: the direction and its new state. See :class:`Base`.

    Args:
        base: the base.
        x: the matrices.
        grad: their gradient.
        state: their state.
        t: the number of this step of each matrix.
        single: whether numbers may be Python's, :func:`is_single`.
        **hyperparameters: those of the base.
    """
    if base.whole_matrix:
        direction, new_state = base.direction(x, grad, state, t, **hyperparameters)
        direction.normalized = base.normalized
        return direction, new_state
    on_host = base.scale_on_host(grad, state, t, **hyperparameters) if single else None
    statistic = base.statistic(grad) if on_host is None else None
    entries, of_entries = base.advance(grad, state, t if single else t.view(-1, 1, 1), **hyperparameters)
    scale, of_matrices = on_host or base.scale(statistic, state, t, **hyperparameters)
    return Direction(entries, scale, base.normalized), {**of_entries, **of_matrices}


def counts(update: Update, finite: Tensor) -> State:
    """What to add to the counters of each matrix that takes the step."""
    return {"num_updates": finite, **{name: flag & finite for name, flag in _flags(update).items()}}


def _flags(update: Update) -> State:
    """Which matrices to count, by the names of the counters."""
    flags = {name: getattr(update, name) for name in FLAGS}
    return {name: flag for name, flag in flags.items() if flag is not None}


@pointwise
def step_number(num_updates: Tensor, lr: Tensor) -> Tensor:
    """The number of this step of each matrix, from 1."""
    return (num_updates + 1).to(lr.dtype)


def _mask(finite: Tensor, new_state: State, state: State) -> State:
    """What is new where it is finite, else what was; in the memory of the state, where nothing else needs it."""
    masked: State = {}
    for name, value in new_state.items():
        needed = any(other is state[name] for other in new_state.values())  # the new value of another buffer
        masked[name] = where(finite, value, state[name], out=None if needed else state[name])
    return masked


def _masked(probe: Tensor, *numbers: Tensor, flags: int) -> tuple[Tensor, ...]:
    """Whether each matrix takes the step, its counters, and its other numbers.

    Args:
        probe: finite where it does.
        *numbers: ``num_updates``, counters, and numbers per matrix as they are; then a flag for each of the counters,
            and the new values of the numbers.
        flags: the number of flags.
    """
    old, new = numbers[: (len(numbers) + 1) // 2], numbers[(len(numbers) + 1) // 2 :]
    finite = probe - probe == 0
    counted = [old[0] + finite, *(old[i + 1] + (new[i] & finite) for i in range(flags))]
    masked = [torch.where(finite, value, last) for last, value in zip(old[flags + 1 :], new[flags:], strict=True)]
    return finite, *counted, *masked


def _increment_(count: Tensor) -> Tensor:
    """Add one; to a number on a CPU as Python does, which takes half the time."""
    return count.fill_(count.item() + 1) if count.numel() == 1 and can_look(count) else count.add_(1)


def _count_all(state: State, update: Update, new_state: State) -> State:
    """The new state where all matrices take the step."""
    old = set(map(id, state.values()))  # which may be written to before it is read
    new = {name: value.clone() if id(value) in old else value for name, value in new_state.items()}
    new["num_updates"] = _increment_(state["num_updates"])
    if update.clipped is not None and update.clipped is not False:
        new["clipped"] = state["clipped"].add_(update.clipped)
    return new


def _freeze_deficient(x: Tensor, rescued: Tensor, finite: Tensor) -> Tensor:
    """Freeze the matrices that are too far away and have no full rank: no landing brings them back.

    Only on a CPU, where to look at values waits for nobody; elsewhere they are counted as rescued in every step.
    """
    chosen = rescued.nonzero(as_tuple=True)
    return finite.index_put(chosen, finite[chosen] & ~is_deficient(x[chosen]))


def _probe(direction: Direction, update: Update, total: Tensor | None) -> Tensor:
    """A number per matrix that is finite only if the direction and the new point are.

    A sum is finite only if its terms are (or, beyond 1e38 in all, have left the range of float32 together).

    Args:
        direction: the direction.
        update: what the method made of it.
        total: the sum of the direction, if it is known.
    """
    if update.covers_direction and update.finiteness_probe is not None:
        return update.finiteness_probe
    if total is None:
        total = direction.matrices.sum((-2, -1))
        if direction.scale is not None:
            total = total * direction.scale
    return total + update.x.sum((-2, -1))


def _host(value: Tensor) -> float:
    """A number on the host; of a complex one the sum of its parts."""
    number: complex = value.item()
    return number.real + number.imag
