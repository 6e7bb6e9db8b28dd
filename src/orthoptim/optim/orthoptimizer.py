"""The contract of every orthoptimizer: torch.optim on the outside, one pure function per method on the inside."""

import inspect
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from copy import copy, deepcopy
from typing import Any, ClassVar, Self, overload

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, StateDict

from orthoptim.base import Base, Direction, Kind, State
from orthoptim.distributed.buckets import ROUND_BYTES
from orthoptim.distributed.handshake import agree, find_dtensors
from orthoptim.distributed.handshake import describe as describe_groups
from orthoptim.distributed.state import init_state
from orthoptim.distributed.step import ShardedStep
from orthoptim.engine.local_step import GroupTensors, LocalStep
from orthoptim.engine.memory import keep_freed_memory
from orthoptim.engine.plan import Plan, describe
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.state import EntrySpec, apart, create, lay_together, specify
from orthoptim.engine.step import Update
from orthoptim.engine.telemetry import DriftTable
from orthoptim.optim import checks, keywords, ordinary
from orthoptim.optim.common_options import DEFAULTS, show_common_options
from orthoptim.optim.drift import drift_of
from orthoptim.optim.options import base_keys, complete, flatten_base, group_defaults, refuse_without_effect
from orthoptim.optim.resume import Loaded, read
from orthoptim.precision import full_precision
from orthoptim.stiefel import ColumnSums, Table, Unrolled, on_one_device
from orthoptim.tensors import HALF_DTYPES, has_values, is_dtensor
from orthoptim.views import View

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class Orthoptimizer(Optimizer):
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

    algorithm: ClassVar[str]
    decomposes: ClassVar[bool] = False  # whether update may raise on what is not finite
    unrolls: ClassVar[bool] = False  # whether there is an update_entries
    has_kernels: ClassVar[bool] = False  # whether engine.kernels computes what update does; not inherited
    base_options: ClassVar[frozenset[str]] = frozenset()  # arguments of __init__ that it gives to its base
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
    _names: ClassVar[frozenset[str]]
    _base_keys: ClassVar[dict[str, dict[str, str]]]  # where a group keeps each hyperparameter of its base
    _plan_options: ClassVar[tuple[str, ...]]  # those of a group that its plan depends on
    _takes_any: ClassVar[bool] = False  # keyword arguments, whatever their names

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        parameters = show_common_options(cls).parameters
        cls._names = frozenset(parameters) - cls.base_options
        cls._base_keys = {}
        cls._plan_options = ("base", *sorted(cls._names - {"self", "params", "lr", "base"}))
        cls._takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse keyword arguments that the method does not have before Python does, which has no cure to offer."""
        try:
            if not cls._takes_any:
                keywords.check_keywords(cls.__name__, kwargs, (cls._names | cls.base_options) - {"self"})
        except TypeError as error:
            agree(find_dtensors([*args[:1], kwargs]), {}, error)
            raise
        return super().__new__(cls)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None,
        base: Base,
        **options: Any,
    ) -> None:
        keep_freed_memory()
        self._repaired: dict[Tensor, tuple[Tensor, int]] = {}
        self._offered: list[Tensor] | None = []
        self._forget_plans()
        error = None
        try:
            params = checks.check_params(params, type(self).__name__)
            super().__init__(params, {"lr": lr, **DEFAULTS, **options, **flatten_base(base, self._names)})
        except Exception as caught:  # to be raised on all ranks
            error = caught
        offered, self._offered = [*find_dtensors(params), *self._offered], None
        self._complete_groups(0, offered, error)

    # What a method provides

    @staticmethod
    @abstractmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> Update | ColumnSums[Update]:
        """Step from X along the direction G; a pure function.

        Written as a generator that yields the sums over columns it needs, see :mod:`orthoptim.stiefel.sums`, it steps
        matrices whose columns lie on several ranks as well; ``direction.scale`` is then known with the first sums.
        Written as a plain function, it is given whole matrices.

        Args:
            x: matrices (B, p, n) with p ≤ n and (nearly) orthonormal rows; or some of their columns.
            direction: G, to be descended; what the base optimizer made of the gradient.
            lr: η, a 0-d tensor.
            state: the method's own buffers, see :meth:`buffers`.
            t: for each matrix, the number of this step, from 1.
            group: the options.
        """

    @classmethod
    def update_whole(
        cls, x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> Update:
        """``update`` of whole matrices. A method that overrides this one has faster forms of the same step."""
        steps = cls.update(x, direction, lr, state, t, group)
        return steps if isinstance(steps, Update) else on_one_device(steps)

    @staticmethod
    def update_entries(x: Table, g: Table, lr: Tensor, group: Mapping[str, Any]) -> Unrolled:
        """``update`` of tiny real matrices for a compiler, where ``unrolls``."""
        raise NotImplementedError

    @classmethod
    def steps_columns(cls, group: Mapping[str, Any]) -> bool:
        """Whether :meth:`update` can step some of the columns, with these options."""
        return inspect.isgeneratorfunction(cls.update) and not cls.buffers(group) and not cls.replaces_gradient(group)

    @staticmethod
    def gradient(x: Tensor, grad: Tensor, group: Mapping[str, Any]) -> Tensor:
        """What the base optimizer is given in the place of the gradient, where :meth:`replaces_gradient`."""
        raise NotImplementedError

    @classmethod
    def replaces_gradient(cls, group: Mapping[str, Any]) -> bool:
        """Whether there is a :meth:`gradient` for these options. It needs whole matrices."""
        return False

    @staticmethod
    def buffers(group: Mapping[str, Any]) -> dict[str, Kind]:
        """State the method keeps beside that of its base optimizer. A method with buffers is given whole matrices."""
        return {}

    @classmethod
    def form(cls, p: int, n: int, group: Mapping[str, Any], device: str = "cpu") -> str:
        """Which form of the step serves a shape on a type of devices; most methods have but one."""
        return cls.algorithm

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """Raise ValueError for options of the method that make no sense."""

    # torch.optim

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, constrained or ordinary; see :meth:`torch.optim.Optimizer.add_param_group`.

        Collective for DTensors: every rank must add a group like it.
        """
        building, count = self._offered is not None, len(self.param_groups)
        offered: list[Tensor] = [] if self._offered is None else self._offered
        error = None
        try:
            self._append_group(dict(param_group), offered)  # the caller may build another optimizer from it
        except Exception as caught:
            if building:
                raise
            error = caught
        if not building:
            self._complete_groups(count, offered, error)

    def _append_group(self, param_group: dict[str, Any], offered: list[Tensor]) -> None:
        """Check all of a group that can be checked without looking at values, and append it."""
        algorithm = param_group.setdefault("algorithm", self.algorithm)
        label = f"group {len(self.param_groups)}"
        if "params" in param_group:
            param_group["params"] = checks.check_params(param_group["params"], label)
            offered.extend(find_dtensors(param_group))
        if algorithm not in (self.algorithm, *ordinary.DEFAULTS):
            known = ", ".join([self.algorithm, *ordinary.DEFAULTS])
            raise ValueError(f"Invalid algorithm of {label}: {algorithm!r}; choose one of {known}")
        if "params" in param_group:
            checks.check_naming(param_group["params"], param_group, self.param_groups, label)
        constrained = algorithm == self.algorithm
        if constrained:
            defaults = group_defaults(param_group, self.defaults, self._names)
        else:
            defaults = ordinary.defaults(algorithm, self.defaults["capturable"])
        given = set(param_group)
        if constrained:
            refuse_without_effect(param_group, defaults, label)
            given = set(param_group)
            keywords.check_names(given, set(defaults), self._known_names(), label)
        else:
            foreign = self._known_names().union(*ordinary.DEFAULTS.values())
            keywords.check_ordinary_names(given, algorithm, set(defaults), foreign, label)
        param_group.update({key: value for key, value in defaults.items() if key not in given})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for key in self.defaults.keys() - defaults.keys() - given:
                del group[key]  # torch fills every group with the defaults of the constrained ones
            if constrained:
                self._check_group(group, label)
            else:
                ordinary.check(group)
        except Exception:
            self.param_groups.pop()
            raise

    def _complete_groups(self, first: int, offered: list[Tensor], error: Exception | None) -> None:
        """Let ranks agree on the groups from the ``first`` on, bring their matrices to the manifold, create state.

        Args:
            first: index of the first new group.
            offered: the DTensors that were given.
            error: what is wrong with the groups on this rank.
        """
        new = self.param_groups[first:] if error is None else []
        try:
            agree(offered, describe_groups(new, first) if offered and error is None else {}, error)
            constrained = {i: group for i, group in enumerate(new, first) if group["algorithm"] == self.algorithm}
            former = checks.repair_(constrained)
            self._repaired.update({param: (value, param._version) for param, value in former.items()})
            if any(is_dtensor(param) for group in self.param_groups for param in group["params"]):
                self.create_state()  # sharded checkpoints are read into the state there is
        except Exception:
            del getattr(self, "param_groups", [])[first:]  # torch may have refused to make any
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from a pickle or a copy, which hold the param groups and the state."""
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # which torch adds, and would write into every new group
        self.__dict__.setdefault("_repaired", {})
        self._offered = None
        self._forget_plans()
        for group in self.param_groups:
            if group["algorithm"] == self.algorithm:
                plain = [param for param in group["params"] if param in self.state and not is_dtensor(param)]
                lay_together([self.state[param] for param in plain], group["block_cap_mb"])

    def __getstate__(self) -> dict[str, Any]:
        """For a pickle or a copy."""
        held = {key: apart(value) if isinstance(key, Tensor) else value for key, value in self.state.items()}
        return {**super().__getstate__(), "state": defaultdict(dict, held)}

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
        rules = {rule.index: rule for rule in self._rules()}
        prepared: list[Any] = [self._kept(rules.get(index)) for index in range(len(self.param_groups))]
        changed = [index for index, tensors in enumerate(prepared) if tensors is None]
        if changed:  # all groups are checked before one is stepped
            checks.check_gradients(self.param_groups, changed)
        for index in changed:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            states: list[Any] = []
            self._init_group(self.param_groups[index], params, grads, states)
            prepared[index] = params, grads, states
            self._keep(rules.get(index), params, states)
        local_views: Mapping[int, View] = {}
        shared = self._shared() if changed else []
        if shared:
            sharded = self._sharded_step()
            with full_precision(*{param.device for param in shared}):
                local = sharded(list(rules.values()), self.state)
            for index, work in local.items():
                for tensors, more in zip(prepared[index], work, strict=True):
                    tensors.extend(more)
            local_views = sharded.local_views
        for index, (group, (params, grads, states)) in enumerate(zip(self.param_groups, prepared, strict=True)):
            if group["algorithm"] in ordinary.DEFAULTS:
                ordinary.step(group, params, grads, states, self.state)
            elif params:
                self._local(rules[index], params, grads, states, local_views)

    def _kept(self, rule: UpdateRule | None) -> tuple[list[Tensor], list[Tensor], list[Any]] | None:
        """Parameters, gradients and states of a group, as in the last step; ``None`` where others are to be stepped."""
        if rule is None or self.replica_group is not None or torch.compiler.is_compiling():
            return None
        kept = self._tensors.get(rule.index)
        grads = None if kept is None else kept.grads(rule, self.state)
        return None if kept is None or grads is None else (kept.params, grads, kept.states)

    def _keep(self, rule: UpdateRule | None, params: list[Tensor], states: list[Any]) -> None:
        if rule is not None and _are_plain(rule.group["params"]) and not torch.compiler.is_compiling():
            self._tensors[rule.index] = GroupTensors(rule, self.state, params, states)

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
        self._restore(self._read(state_dict))
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def check_state_dict(self, state_dict: StateDict) -> None:
        """Raise what :meth:`load_state_dict` would raise, and change nothing."""
        self._read(state_dict)

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
        rules, sharded = self._rules(), self._sharded_step() if self._shared() else None
        if sharded is not None:
            sharded.plan(rules)
        plan = Plan()
        for rule in rules:
            params = [param for param in rule.group["params"] if not self._is_shared(param)]
            buckets: list[Any] = []
            if sharded is not None and rule.index in sharded.groups:
                params += sharded.groups[rule.index].local_parts()
                buckets += [bucket for bucket in sharded.groups[rule.index].sharded if bucket.count]
            local = self._local.last_plan(rule, params, {} if sharded is None else sharded.local_views)
            for bucket in (*local.buckets, *buckets):
                plan.extend(describe(bucket, per_parameter))
        return plan

    # Inside

    @staticmethod
    def _known_names() -> set[str]:
        """Every option that some method or base optimizer has."""
        names = {name for base in Base.all() for name in base.names}
        return names.union(*(method._names for method in Orthoptimizer.__subclasses__())) - {"self", "params"}

    @classmethod
    def _hyperparameters(cls, group: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the base optimizer, as they stand in a group."""
        base = group["base"]
        if base not in cls._base_keys:
            cls._base_keys[base] = base_keys(Base.named(base), cls._names)
        return {name: group[key] for name, key in cls._base_keys[base].items()}

    def _check_group(self, group: dict[str, Any], label: str) -> None:
        view = View.of(group["view"])
        group["view"] = view if view.is_divided else view.name
        Base.named(group["base"])(**self._hyperparameters(group))
        checks.check_group(group, label)
        self.check_options(group)

    def _init_group(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], states: list[Any]) -> None:
        """Fill the lists with the parameters that have a gradient, creating their state at the first one.

        torch.compile calls a method of this name outside the graph, with just such arguments.
        """
        self._repaired.clear()
        constrained = group["algorithm"] == self.algorithm
        for param in group["params"]:
            grad = param.grad
            if grad is None or (constrained and self._is_shared(param)):  # ShardedStep steps those
                continue
            if not constrained or grad.numel() > 0:  # an empty batch has nothing to step
                params.append(param)
                grads.append(grad)
        held = [self.state[param] for param in params]
        self._check_precision(group, params, held)
        if not constrained:
            for param, state in zip(params, held, strict=True):
                states.extend(ordinary.init_state(param, group, state))
            return
        names = ["step", "master", *self._kinds(group)]
        needed = {name for name in names if name != "master"}
        half = {param.dtype for param in params} & HALF_DTYPES
        new = []
        for param, state in zip(params, held, strict=True):
            if not needed <= state.keys() or (half and param.dtype in half and "master" not in state):
                self._init_state(param, group, state)
                new.append(state)
        if new:
            lay_together(new, group["block_cap_mb"])
        for param, state in zip(params, held, strict=True):
            # a parameter that needs no master copy is its own
            states.extend([state.get(name, param) for name in names])

    def _check_precision(self, group: dict[str, Any], params: list[Tensor], held: list[Any]) -> None:
        if group["algorithm"] == self.algorithm:
            buffer = next((name for name, kind in self._kinds(group).items() if kind == "entries"), "")
        else:
            buffer = ordinary.BUFFERS[group["algorithm"]]
        dtypes = {param.dtype for param in params}
        held_dtypes = {state[buffer].dtype for state in held if state.get(buffer) is not None}
        if len(dtypes) > 1 or not held_dtypes <= dtypes:  # a thousand parameters take no time so
            checks.check_precision(group, params, held, buffer, self._label(group))

    def _label(self, group: Mapping[str, Any]) -> str:
        return f"group {next(i for i, other in enumerate(self.param_groups) if other is group)}"

    def create_state(self) -> None:
        """Create the state of all parameters now rather than in their first step; see :meth:`_complete_groups`."""
        for group in self.param_groups:
            constrained = group["algorithm"] == self.algorithm
            for param in group["params"]:
                # torch.distributed.checkpoint expects no state of what is frozen, and it takes memory
                if not has_values(param) or not (param.requires_grad or (constrained and is_dtensor(param))):
                    continue
                if constrained:
                    self._init_state(param, group, self.state[param])
                else:
                    ordinary.init_state(param, group, self.state[param], eager=True)

    def _kinds(self, group: Mapping[str, Any]) -> dict[str, Kind]:
        """The state that a step changes, beside ``step`` and ``master``."""
        base = Base.named(group["base"]).buffers(self._hyperparameters(group))
        return {"num_updates": "counters", "clipped": "counters", "rescued": "counters", **base, **self.buffers(group)}

    def _rule(self, index: int, group: dict[str, Any]) -> UpdateRule:
        """How a constrained group is updated, with the options as they are now."""
        options = tuple(group[name] for name in self._plan_options)
        return UpdateRule(type(self), group, index, self._hyperparameters(group), self._kinds(group), options)

    def _rules(self) -> list[UpdateRule]:
        """Those of all constrained groups."""
        return [
            self._rule(index, group)
            for index, group in enumerate(self.param_groups)
            if group["algorithm"] == self.algorithm
        ]

    def _forget_plans(self) -> None:
        """Drop what is kept from step to step."""
        self._local = LocalStep()
        self._tensors: dict[int, GroupTensors] = {}
        self._sharded: ShardedStep | None = None

    def _is_shared(self, param: Tensor) -> bool:
        """Whether a constrained parameter is stepped together with other ranks."""
        return self.replica_group is not None or is_dtensor(param)

    def _shared(self) -> list[Tensor]:
        """The constrained parameters that are stepped together with other ranks."""
        return [
            param
            for group in self.param_groups
            if group["algorithm"] == self.algorithm
            if self.replica_group is not None or not _are_plain(group["params"])
            for param in group["params"]
            if self._is_shared(param)
        ]

    def _sharded_step(self) -> ShardedStep:
        if self._sharded is None:
            self._sharded = ShardedStep()
        self._sharded.round_bytes = self.round_bytes
        self._sharded.communication_dtype = self.communication_dtype
        self._sharded.replicas = self.replica_group
        return self._sharded

    def _read(self, state_dict: StateDict) -> Loaded:
        """What a state dict stands for, complete; raises where it does not fit, and changes nothing."""
        loaded = read(self.param_groups, state_dict, self._complete_group, self._specify)
        for group in loaded.groups:
            for param in group["params"]:
                if group["algorithm"] == self.algorithm and loaded.state.get(param):
                    self._init_state(param, group, loaded.state[param])
        return loaded

    def _complete_group(self, saved: dict[str, Any], index: int) -> dict[str, Any]:
        saved = deepcopy({key: value for key, value in saved.items() if key != "params"}) | {"params": saved["params"]}
        if saved["algorithm"] in ordinary.DEFAULTS:
            group = ordinary.DEFAULTS[saved["algorithm"]] | saved
            ordinary.check(group)
            return group
        group = complete(saved, self.defaults, self._names, self._known_names())
        self._check_group(group, f"group {index}")
        return group

    def _specify(self, param: Tensor, group: Mapping[str, Any]) -> dict[str, EntrySpec]:
        if group["algorithm"] in ordinary.DEFAULTS:
            return ordinary.specify(param, group)
        # what was made while an option was on stays in the state when it is switched off
        every = specify(param, group, self._kinds({key: value or True for key, value in group.items()}))
        return {name: spec._replace(optional=True) for name, spec in every.items()} | specify(
            param, group, self._kinds(group)
        )

    def _init_state(self, param: Tensor, group: Mapping[str, Any], state: dict[str, Tensor]) -> None:
        """Create what is missing in the state of a constrained parameter."""
        if is_dtensor(param):
            init_state(param, self._kinds(group), group, state)
        else:
            create(param, state, group, self._kinds(group))

    @torch.no_grad()
    def _restore(self, loaded: Loaded) -> None:
        for param, (former, version) in self._repaired.items():
            if param._version == version and loaded.state.get(param):
                param.copy_(former)
        self._repaired.clear()
        self.__setstate__({"state": loaded.state, "param_groups": loaded.groups})


def _are_plain(params: Iterable[Tensor]) -> bool:
    """Whether no parameter can be a DTensor, told by their types alone: a thousand take microseconds."""
    return set(map(type, params)) <= {Tensor, nn.Parameter}
