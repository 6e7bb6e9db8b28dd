"""The contract of every orthoptimizer: torch.optim on the outside, one pure function per method on the inside."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import StateDict

from orthoptim.base import Base
from orthoptim.distributed.buckets import ROUND_BYTES
from orthoptim.distributed.state import lay_states_together
from orthoptim.distributed.step import ShardedStep
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.state import apart, init_states
from orthoptim.engine.step import LocalStep
from orthoptim.engine.telemetry import DriftTable, Plan, describe
from orthoptim.optim import checks, ordinary
from orthoptim.optim.construction import Construction, Params
from orthoptim.optim.drift import drift_of
from orthoptim.optim.resume import read
from orthoptim.tensors import are_dtensors, are_plain, is_dtensor
from orthoptim.views import View

__all__ = ["Orthoptimizer", "Params"]

Lists = tuple[list[Tensor], list[Tensor], list[Any]]
"""Parameters that step, their gradients, and their states, the tensors of one parameter after those of another."""


class Orthoptimizer(Construction):
    """Base class of the orthoptimizers. A method overrides :meth:`update`, never ``step``.

    A step takes the way *parameters → buckets → direction → update → parameters*. Nothing is written before all of a
    block is computed, so a matrix is written whole, with its state, or not at all; and nothing waits for the device: a
    matrix whose gradient (or new value) is not finite keeps its value and its state by a mask, is counted, and its
    neighbours step.

    Groups with ``algorithm="adamw"`` or ``"sgd"`` hold ordinary parameters and are stepped by torch's own code.

    State per parameter: ``step``; ``num_updates``, ``clipped`` and ``rescued`` (one count per matrix); the buffers
    of the base optimizer and of the method, in the parameter's own shape; ``master``, a float32 copy of a
    half-precision parameter.
    """

    round_bytes: int = ROUND_BYTES
    """How much of the matrices that are cut is under way at a time, for each rank: a step takes about ten times as much
    memory. Matrices that are larger travel one for each rank, and do not overlap. Set it on an optimizer, on all ranks
    alike; 0 takes the least memory."""
    communication_dtype: torch.dtype | None = None
    """``torch.bfloat16``: what directions travel in between ranks, for bases that normalise (VAdam) and real matrices
    whose short side is cut or that go to an owner; X travels as it is, so steps stay as feasible. Set it on an
    optimizer, on all ranks alike. ``None``: the dtype that they are computed in."""
    replica_group: "dist.ProcessGroup | None" = None
    """The ranks that hold the same plain parameters, as under DDP, and share the work of a step: each steps some of the
    matrices and sends the others what is new, by one all-to-all. Set it on an optimizer, on all ranks alike, such as
    ``torch.distributed.group.WORLD``. ``None``: every rank steps all matrices, and none is sent."""
    _rules: dict[int, UpdateRule]  # those of the constrained groups, by index

    def __init__(self, params: Params, lr: float | Tensor | None, base: Base, **method_options: Any) -> None:
        self._forget_plans()
        super().__init__(params, lr, base, **method_options)

    # The step

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform one optimization step.

        Args:
            closure: reevaluates the model and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_groups()
        return loss

    def _step_groups(self) -> None:
        for group in self.param_groups:
            if type(group["lr"]) is not float:
                checks.check_rate(group["lr"])
        rules = self._current_rules()
        planned: dict[int, list[Tensor]] = {}  # the gradients of groups whose last plan serves
        if self.replica_group is None:
            for index, rule in rules.items():
                grads = self._local.grads(rule, self.state)
                if grads is not None:
                    planned[index] = grads
        if len(planned) == len(self.param_groups):
            for index, grads in planned.items():
                self._local(rules[index], grads)
        else:
            self._step_changed(rules, planned)

    def _step_changed(self, rules: Mapping[int, UpdateRule], planned: Mapping[int, list[Tensor]]) -> None:
        """A step in which some groups are ordinary, or need a new plan, or ranks."""
        changed = [index for index in range(len(self.param_groups)) if index not in planned]
        # gradients of DTensors are dense, and their state is there
        checked = [index for index in changed if not (index in rules and are_dtensors(rules[index].group["params"]))]
        if checked:  # all groups are checked before one is stepped
            checks.check_gradients(self.param_groups, checked)
        lists: dict[int, Lists] = {index: ([], [], []) for index in changed}
        for index in checked:
            self._init_group(self.param_groups[index], *lists[index])
        local_views = self._step_sharded(rules, lists)
        for index, group in enumerate(self.param_groups):
            if group["algorithm"] in ordinary.DEFAULTS:
                ordinary.step(group, *lists[index], self.state)
            elif index in planned:
                self._local(rules[index], planned[index])
            elif lists[index][0]:
                params, grads, states = lists[index]
                self._local(
                    rules[index], grads, self._local.plan(rules[index], params, states, local_views, self.state)
                )

    def _step_sharded(self, rules: Mapping[int, UpdateRule], lists: Mapping[int, Lists]) -> Mapping[int, View]:
        """Step the matrices that are cut; add those that are whole on this rank to the lists; return their views."""
        if not self._is_any_shared(rules):
            return {}
        self._repaired.clear()
        sharded = self._sharded_step()
        for index, work in sharded(list(rules.values()), self.state).items():
            for tensors, more in zip(lists[index], work, strict=True):
                tensors.extend(more)
        return sharded.local_views

    def _init_group(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], states: list[Any]) -> None:
        """Fill the lists with the parameters that have a gradient, creating their state at the first one.

        torch.compile calls a method of this name outside the graph, with just such arguments.
        """
        self._repaired.clear()
        constrained = group["algorithm"] == self.algorithm
        shared = constrained and (self.replica_group is not None or not are_plain(group["params"]))
        for param in group["params"]:
            if shared and self._is_shared(param):  # ShardedStep steps those
                continue
            grad = param.grad
            if grad is None:
                continue
            if not constrained or grad.numel() > 0:  # an empty batch has nothing to step
                params.append(param)
                grads.append(grad)
        if constrained and not params:
            return
        of_params = [self.state[param] for param in params]
        index = next(i for i, other in enumerate(self.param_groups) if other is group)
        rule = UpdateRule(type(self), index, group) if constrained else None
        buffer = ordinary.BUFFERS[group["algorithm"]] if rule is None else rule.entries_name
        checks.check_precision(group, params, of_params, buffer, index)
        if rule is None:
            for param, state in zip(params, of_params, strict=True):
                states.extend(ordinary.init_state(param, group, state))
            return
        states.extend(init_states(rule, params, of_params))

    def _current_rules(self) -> dict[int, UpdateRule]:
        """How the constrained groups are updated, with the options as they are now."""
        rules = {}
        for index, group in enumerate(self.param_groups):
            if group["algorithm"] == self.algorithm:
                rule = self._rules.get(index)
                if rule is None or rule.group is not group or rule.values != rule.read(group):
                    rule = self._checked_rule(index, group)
                rules[index] = rule
        if not torch.compiler.is_compiling():  # torch 2.9 traces no assignment to an attribute of an optimizer
            self._rules = rules
        return rules

    def _checked_rule(self, index: int, group: dict[str, Any]) -> UpdateRule:
        """The rule of a group that somebody may have changed."""
        if not torch.compiler.is_compiling():
            self._check_values(group)
        return UpdateRule(type(self), index, group)

    def _forget_plans(self) -> None:
        """Drop what is kept from step to step."""
        self._rules = {}
        self._local = LocalStep()
        self._sharded = ShardedStep()

    def _is_shared(self, param: Tensor) -> bool:
        """Whether a constrained parameter is stepped together with other ranks."""
        return self.replica_group is not None or is_dtensor(param)

    def _is_any_shared(self, rules: Mapping[int, UpdateRule]) -> bool:
        """Whether some constrained parameters may be stepped together with other ranks."""
        return self.replica_group is not None or not all(are_plain(rule.group["params"]) for rule in rules.values())

    def _sharded_step(self) -> ShardedStep:
        self._sharded.round_bytes = self.round_bytes
        self._sharded.communication_dtype = self.communication_dtype
        self._sharded.replicas = self.replica_group
        return self._sharded

    # Copies and checkpoints

    def __getstate__(self) -> dict[str, Any]:
        """For a pickle or a copy."""
        state = {key: apart(value) if isinstance(key, Tensor) else value for key, value in self.state.items()}
        return {**super().__getstate__(), "state": defaultdict(dict, state)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from a pickle or a copy, which hold the param groups and the state."""
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # which torch adds, and would write into every new group
        self.__dict__.setdefault("_repaired", {})
        self._offered = None
        self._forget_plans()
        for group in self.param_groups:
            if group["algorithm"] == self.algorithm:
                lay_states_together(group, self.state)

    def state_dict(self) -> StateDict:
        """The state and the param groups as tensors, numbers, strings and containers of these."""
        state_dict = super().state_dict()
        for group in state_dict["param_groups"]:
            if isinstance(group.get("view"), View):
                group["view"] = group["view"].plain()
        return state_dict

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what :meth:`state_dict` returned.

        All of it is read and checked before anything changes: where it does not fit, the optimizer and its parameters
        stay as they are. Options that are newer than the checkpoint take their defaults.

        A state says that the parameters come from the middle of a run and are meant as they are: what construction
        repaired is taken back, so that resuming equals never having stopped.
        """
        state_dict = copy(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            replacement = before(self, state_dict)
            state_dict = state_dict if replacement is None else replacement
        loaded = read(self, state_dict)
        for param, (former, version) in self._repaired.items():
            if param._version == version and loaded.state.get(param):
                with torch.no_grad():
                    param.copy_(former)
        self._repaired.clear()
        self.__setstate__({"state": loaded.state, "param_groups": loaded.groups})
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def check_state_dict(self, state_dict: StateDict) -> None:
        """Raise what :meth:`load_state_dict` would raise, and change nothing."""
        read(self, state_dict)

    # For those who watch a run

    @torch.no_grad()
    def drift(self, *, per_parameter: bool = False) -> DriftTable:
        """Distance from the manifold and counts of skipped, clipped and rescued steps, for each constrained group.

        The distance is ‖XXᴴ − I‖_F of the parameters as the model uses them. Synchronises with the device. Collective
        for DTensors: every rank must call it and receives all values.

        Args:
            per_parameter: whether to return a row for each parameter rather than for each group.

        Returns:
            A list of :class:`Drift` that prints as a table and has ``as_dict()`` for loggers.

        Example:
            >>> import orthoptim as oo
            >>> opt = oo.POGO([("attn.weight", torch.nn.Parameter(torch.eye(8)))], lr=0.1)
            >>> print(opt.drift())
            distance ‖XXᴴ − I‖_F of each matrix X, and counts of steps
            group  parameter    matrices     mean      max  skipped  clipped  rescued  deficient
                0  attn.weight         1  0.0e+00  0.0e+00        0        0        0          0
            >>> opt.drift().as_dict()["group0/max_distance"]
            0.0
        """
        constrained = {i: group for i, group in enumerate(self.param_groups) if group["algorithm"] == self.algorithm}
        return DriftTable(drift_of(constrained, self.state, per_parameter), per_parameter)

    def plan(self, *, per_parameter: bool = False) -> Plan:
        """The plan that ``step`` works through: buckets of like matrices, and how each is stepped.

        Before the first step that is the plan of a step in which every parameter has a gradient.

        Args:
            per_parameter: whether to return the share of each parameter rather than whole buckets.

        Returns:
            A list of :class:`BucketPlan` that prints as a table and has ``as_dict()`` for loggers.

        Example:
            >>> import orthoptim as oo
            >>> opt = oo.POGO([torch.nn.Parameter(torch.eye(8)) for _ in range(5)], lr=0.1)
            >>> print(opt.plan())
            buckets of like matrices, and how each is stepped
            group  parameter          matrices  p×n  dtype    device  form      blocks  strategy
                0  params[0] +4 more         5  8×8  float32  cpu     direct-n       1  local
            >>> [(bucket.matrices, bucket.form, bucket.blocks) for bucket in opt.plan()]
            [(5, 'direct-n', 1)]
        """
        rules = self._current_rules()
        sharded = self._sharded_step() if self._is_any_shared(rules) else None
        if sharded is not None:
            sharded.plan(list(rules.values()))
        plan = Plan()
        for index, rule in rules.items():
            params = [param for param in rule.group["params"] if not self._is_shared(param)]
            buckets: list[Any] = []
            if sharded is not None and index in sharded.groups:
                params += sharded.groups[index].local_parts()
                buckets += [bucket for bucket in sharded.groups[index].sharded if bucket.count]
            local = self._local.last_plan(rule, params, {} if sharded is None else sharded.local_views)
            for bucket in (*local.buckets, *buckets):
                plan.extend(describe(bucket, per_parameter))
        return plan
