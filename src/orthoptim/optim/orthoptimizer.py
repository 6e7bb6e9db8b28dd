"""The contract of every orthoptimizer: torch.optim on the outside, one pure function per method on the inside."""

import inspect
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, StateDict

from orthoptim.base import Base, Direction, Kind, State
from orthoptim.distributed.handshake import agreement
from orthoptim.engine.buckets import make_buckets
from orthoptim.engine.memory import keep_freed_memory
from orthoptim.engine.naming import names_of, parameter_name
from orthoptim.engine.state import EntrySpec, apart, create, lay_together, specify, together
from orthoptim.engine.step import BlockStep, Update
from orthoptim.engine.telemetry import DriftTable, PlanTable, plans_of
from orthoptim.optim import checks, keywords, ordinary
from orthoptim.optim.drift import drift_of
from orthoptim.optim.options import complete, flatten_base, group_defaults, hyperparameters, refuse_without_effect
from orthoptim.optim.resume import Loaded, read
from orthoptim.precision import full_precision
from orthoptim.stiefel import ColumnSums, Table, Unrolled, on_one_device
from orthoptim.tensors import compute_dtype, has_values, is_dtensor, real_dtype
from orthoptim.user_warnings import warn_user
from orthoptim.views import Side, View, matrix_shape

if TYPE_CHECKING:
    from orthoptim.distributed.sharded_step import ShardedStep

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
    _names: ClassVar[frozenset[str]]
    _takes_any: ClassVar[bool] = False  # keyword arguments, whatever their names

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        parameters = inspect.signature(cls.__init__).parameters
        cls._names = frozenset(parameters)
        cls._takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse keyword arguments that the method does not have before Python does, which has no cure to offer."""
        if not cls._takes_any:
            keywords.check_keywords(cls.__name__, kwargs, cls._names - {"self"})
        return super().__new__(cls)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None,
        base: Base,
        *,
        view: View = "matrix",
        side: Side = "auto",
        maximize: bool = False,
        compile: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "view": view,
            "side": side,
            "maximize": maximize,
            "compile": compile,
            **options,
            **flatten_base(base, self._names),
        }
        params = checks.check_params(params, type(self).__name__)
        keep_freed_memory()
        self._repaired: dict[Tensor, tuple[Tensor, int]] = {}
        self._block_steps: dict[int, BlockStep] = {}
        self._warned: set[Tensor] = set()
        self._sharded: ShardedStep | None = None
        try:
            super().__init__(params, defaults)
        except Exception:
            with torch.no_grad():
                for param, (former, _) in self._repaired.items():
                    param.copy_(former)
            raise

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
    def form(cls, p: int, n: int, group: Mapping[str, Any]) -> str:
        """Which form of the step serves a shape, for :meth:`plan`; most methods have but one."""
        return cls.algorithm

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """Raise ValueError for options of the method that make no sense."""

    # torch.optim

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, constrained or ordinary; see :meth:`torch.optim.Optimizer.add_param_group`."""
        param_group = dict(param_group)  # the caller may want to build another optimizer from it
        algorithm = param_group.setdefault("algorithm", self.algorithm)
        label = f"group {len(self.param_groups)}"
        if algorithm not in (self.algorithm, *ordinary.DEFAULTS):
            known = ", ".join([self.algorithm, *ordinary.DEFAULTS])
            raise ValueError(f"Invalid algorithm of {label}: {algorithm!r}; choose one of {known}")
        if "params" in param_group:
            param_group["params"] = checks.check_params(param_group["params"], label)
            checks.check_naming(param_group["params"], param_group, self.param_groups, label)
        mine = algorithm == self.algorithm
        defaults = group_defaults(param_group, self.defaults, self._names) if mine else ordinary.DEFAULTS[algorithm]
        given = set(param_group)
        if mine:
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
            with agreement(group, label):
                if mine:
                    self._check_group(group, label)
                else:
                    ordinary.check(group)
            if mine:
                former = checks.repair_(group, label)
                self._repaired.update({param: (value, param._version) for param, value in former.items()})
            self._init_placed(group)
        except Exception:
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from a pickle or a copy, which hold the param groups and the state."""
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # which torch adds, and would write into every new group
        self.__dict__.setdefault("_repaired", {})
        self.__dict__["_block_steps"] = {}
        self.__dict__["_warned"] = set()
        self.__dict__["_sharded"] = None
        for group in self.param_groups:
            if group["algorithm"] == self.algorithm:
                plain = [param for param in group["params"] if param in self.state and not is_dtensor(param)]
                lay_together([self.state[param] for param in plain])

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
        checks.check_gradients(self.param_groups)
        prepared = []  # all groups are checked before one is stepped
        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            states: list[Any] = []
            self._init_group(group, params, grads, states)
            prepared.append((group, params, grads, states))
        for group, params, grads, states in prepared:
            if group["algorithm"] in ordinary.DEFAULTS:
                ordinary.step(group, params, grads, states, self.state)
            elif params:
                with full_precision(params[0]):
                    self._step_group(group, params, grads, states)
        self._step_sharded()

    def _step_sharded(self) -> None:
        """Step the DTensors: those of all groups together, for few collectives."""
        if self._has_dtensors():
            self._sharded_step()()

    def _has_dtensors(self) -> bool:
        return any(
            is_dtensor(param)
            for group in self.param_groups
            if group["algorithm"] == self.algorithm
            for param in group["params"]
        )

    def _sharded_step(self) -> "ShardedStep":
        from orthoptim.distributed.sharded_step import (
            ShardedStep,  # there is something to import where there are DTensors
        )

        if self._sharded is None:
            self._sharded = ShardedStep(self)
        return self._sharded

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
        rows = [
            row
            for index, group in enumerate(self.param_groups)
            if group["algorithm"] == self.algorithm
            for row in drift_of(group, index, self.state, per_parameter)
        ]
        return DriftTable(rows, per_parameter)

    def plan(self, *, per_parameter: bool = False) -> PlanTable:
        """How the constrained parameters are gathered into buckets, and by which form each is stepped.

        Args:
            per_parameter: whether to return a row for each parameter rather than for each bucket.

        Returns:
            A list of :class:`Plan` that prints as a table and has ``as_dict()`` for loggers.

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
        rows = []
        for index, group in enumerate(self.param_groups):
            if group["algorithm"] != self.algorithm:
                continue
            pairs = zip(names_of(group), group["params"], strict=True)
            named = [(name, param) for name, param in pairs if not is_dtensor(param) and param.numel() > 0]
            params = [param for _, param in named]
            for bucket in make_buckets(params, group["view"], group["side"], compile=group["compile"]):
                form = self.form(bucket.p, bucket.n, group)
                rows.extend(plans_of(bucket, named, group, index, form, per_parameter))
        if self._has_dtensors():
            rows.extend(self._sharded_step().plans.shown(per_parameter))
        return PlanTable(rows)

    # Inside

    @staticmethod
    def _known_names() -> set[str]:
        """Every option that some method or base optimizer has."""
        names = {name for base in Base.all() for name in base.names}
        return names.union(*(method._names for method in Orthoptimizer.__subclasses__())) - {"self", "params"}

    @classmethod
    def _hyperparameters(cls, group: Mapping[str, Any]) -> dict[str, Any]:
        return hyperparameters(group, cls._names)

    @classmethod
    def _gradient(cls, group: Mapping[str, Any]) -> Callable[..., Tensor] | None:
        return cls.gradient if cls.replaces_gradient(group) else None

    def _check_group(self, group: dict[str, Any], label: str) -> None:
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
            if constrained and is_dtensor(param):  # see _step_sharded
                continue
            grad = param.grad
            if grad is not None and (not constrained or grad.numel() > 0):  # an empty batch has nothing to step
                params.append(param)
                grads.append(grad)
        held = [self.state[param] for param in params]
        self._check_precision(group, params, held)
        if not constrained:
            for param, state in zip(params, held, strict=True):
                states.extend(ordinary.init_state(param, group, state))
            return
        names = self._state_names(group)
        needed = {name for name in names if name != "master"}
        half = {dtype for dtype in {param.dtype for param in params} if compute_dtype(dtype) != dtype}
        new = []
        for param, state in zip(params, held, strict=True):
            if not needed <= state.keys() or (half and param.dtype in half and "master" not in state):
                self._init_state(param, group, state)
                new.append(state)
        lay_together(new)
        for param, state in zip(params, held, strict=True):
            # a parameter that needs no master copy is its own
            states.extend([state.get(name, param) for name in names])

    def _check_precision(self, group: dict[str, Any], params: list[Tensor], held: list[Any]) -> None:
        if group["algorithm"] == self.algorithm:
            buffer = next((name for name, kind in self._kinds(group).items() if kind == "entries"), None)
        else:
            buffer = ordinary.BUFFERS[group["algorithm"]]
        if buffer is not None:
            label = f"group {next(i for i, each in enumerate(self.param_groups) if each is group)}"
            checks.check_precision(group, params, held, buffer, label)

    def _init_placed(self, group: dict[str, Any]) -> None:
        """Create the state of DTensors now: checkpoints of sharded optimizers are read into the state there is."""
        for param in group["params"]:
            if not is_dtensor(param) or not has_values(param):
                continue
            if not param.requires_grad and group["algorithm"] != self.algorithm:
                continue  # torch.distributed.checkpoint expects no state of what is frozen, and it takes memory
            if group["algorithm"] == self.algorithm:
                self._init_state(param, group, self.state[param])
            else:
                ordinary.init_state(param, group, self.state[param], eager=True)

    def _kinds(self, group: Mapping[str, Any]) -> dict[str, Kind]:
        """The state that a step changes, beside ``step`` and ``master``."""
        base = Base.named(group["base"]).buffers(self._hyperparameters(group))
        return {"num_updates": "counters", "clipped": "counters", "rescued": "counters", **base, **self.buffers(group)}

    def _state_names(self, group: Mapping[str, Any]) -> list[str]:
        return ["step", "master", *self._kinds(group)]

    def _block_step(self, group: dict[str, Any]) -> BlockStep:
        """What steps the blocks of a group; kept where it holds compiled code."""
        values, kinds = self._hyperparameters(group), self._kinds(group)
        kept = self._block_steps.get(id(group)) if group["compile"] else None
        if kept is not None and kept.group is group and kept.kinds == kinds:
            kept.hyperparameters, kept.gradient = values, self._gradient(group)
            return kept
        update_entries = self.update_entries if self.unrolls else None
        step = BlockStep(
            self.update_whole, group, values, kinds, self.decomposes, update_entries, self._gradient(group)
        )
        if group["compile"]:
            self._block_steps[id(group)] = step
        return step

    def _step_group(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], states: list[Tensor]
    ) -> None:
        names = self._state_names(group)
        columns = {name: states[i :: len(names)] for i, name in enumerate(names)}
        steps = columns.pop("step")
        step = self._block_step(group)
        states_of = list(columns.values())
        compile = group["compile"] or torch.compiler.is_compiling()
        for bucket in make_buckets(params, group["view"], group["side"], states_of, compile):
            lr = torch.as_tensor(group["lr"], dtype=real_dtype(bucket.dtype), device=bucket.device).reshape(())
            for block in bucket.blocks:
                step(block, bucket.half, lr, params, grads, columns)
                if block.part is None or block.part[0] == 0:  # if the next part raises, its matrices are skipped
                    torch._foreach_add_(together([steps[i] for i in block.members]), 1)
                if step.rescued is not None:
                    self._warn_of_far(group, [params[i] for i in block.members], step.rescued)

    def _warn_of_far(self, group: dict[str, Any], params: list[Tensor], rescued: Tensor) -> None:
        """Warn, once for each parameter, of matrices that somebody has written far off the manifold.

        Args:
            group: a constrained group.
            params: the parameters of one block.
            rescued: which of its matrices were too far away.
        """
        counts = [matrix_shape(param.shape, group["view"], group["side"])[0].numel() for param in params]
        flags = [rescued] if len(params) == 1 else torch.split(rescued, counts)
        for param, flag in zip(params, flags, strict=True):
            if param in self._warned or not bool(flag.any()):
                continue
            self._warned.add(param)
            index = next(i for i, other in enumerate(self.param_groups) if other is group)
            # of a DTensor that is whole on this rank, the local part is stepped
            position = next(i for i, p in enumerate(group["params"]) if param is getattr(p, "_local_tensor", p))
            name = parameter_name(group, position, f"group {index}")
            warn_user(
                f"{name} was far from orthonormal ({int(flag.sum())} of {len(flag)} matrices): it was written after "
                "the optimizer was built, or steps without a guarantee left the manifold. Steps bring it back and are "
                "counted as rescued in drift(); a matrix without full rank does not step and is counted as skipped: "
                "call orthoptim.orthogonalize_ on it"
            )

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
            from orthoptim.distributed.sharded_state import init_state

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
