"""How an orthoptimizer is built: groups are checked, completed, agreed on by all ranks, and brought to the manifold."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from torch import Tensor
from torch.optim.optimizer import Optimizer

from orthoptim.base import Base
from orthoptim.distributed.handshake import agree, find_dtensors
from orthoptim.distributed.handshake import describe as describe_groups
from orthoptim.distributed.state import init_state, lay_states_together
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.state import keep_freed_memory
from orthoptim.optim import checks, options, ordinary
from orthoptim.optim.common_options import DEFAULTS
from orthoptim.optim.contract import UpdateContract
from orthoptim.tensors import has_values, is_dtensor
from orthoptim.views import View

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class Construction(UpdateContract, Optimizer):
    """The part of :class:`Orthoptimizer` that takes parameters and options."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse keyword arguments that the method does not have before Python does, which has no cure to offer."""
        try:
            if not cls._takes_any:
                options.check_keywords(cls.__name__, kwargs, cls.option_names | cls.base_options | {"params"})
        except TypeError as error:
            agree(find_dtensors([*args[:1], kwargs]), {}, error)
            raise
        return super().__new__(cls)

    def __init__(self, params: Params, lr: float | Tensor | None, base: Base, **method_options: Any) -> None:
        keep_freed_memory()
        self._repaired: dict[Tensor, tuple[Tensor, int]] = {}
        self._offered: list[Tensor] | None = []
        error = None
        try:
            params = checks.check_params(params, type(self).__name__)
            flat = options.flatten_base(base, self.option_names)
            super().__init__(params, {"lr": lr, **DEFAULTS, **method_options, **flat})
        except Exception as caught:  # to be raised on all ranks
            error = caught
        offered, self._offered = [*find_dtensors(params), *self._offered], None
        self._complete_groups(0, offered, error)

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

    def _append_group(self, group: dict[str, Any], offered: list[Tensor]) -> None:
        """Check all of a group that can be checked without looking at values, and append it."""
        algorithm = group.setdefault("algorithm", self.algorithm)
        label = f"group {len(self.param_groups)}"
        if "params" in group:
            group["params"] = checks.check_params(group["params"], label)
            offered.extend(find_dtensors(group))
            checks.check_naming(group["params"], group, self.param_groups, label)
        if algorithm not in (self.algorithm, *ordinary.DEFAULTS):
            known = ", ".join([self.algorithm, *ordinary.DEFAULTS])
            raise ValueError(f"Invalid algorithm of {label}: {algorithm!r}; choose one of {known}")
        if algorithm == self.algorithm:
            defaults = options.defaults_of(group, self.defaults, self.option_names, self.known_names(), label)
        else:
            defaults = ordinary.defaults_of(group, self.defaults["capturable"], self.known_names(), label)
        group = {**defaults, **group}
        # torch fills every group with the defaults of the constrained ones
        foreign = self.defaults.keys() - group.keys()
        super().add_param_group(group)
        try:
            for key in foreign:
                del group[key]
            if algorithm == self.algorithm:
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

    def _check_group(self, group: dict[str, Any], label: str) -> None:
        """Refuse options of a constrained group that make no sense; a view is written as its name, if it has one."""
        view = View.of(group["view"])
        group["view"] = view if view.is_divided else view.name
        checks.check_group(group, label)
        checks.check_memory(self.param_groups, group)
        self._check_values(group)

    def _check_values(self, group: Mapping[str, Any]) -> None:
        """Refuse values of options that make no sense, whoever has set them."""
        View.of(group["view"])
        Base.named(group["base"])(**self.hyperparameters(group))
        checks.check_switches(group)
        self.check_options(group)

    def create_state(self) -> None:
        """Create the state of all parameters now rather than in their first step; see :meth:`_complete_groups`."""
        for index, group in enumerate(self.param_groups):
            constrained = group["algorithm"] == self.algorithm
            kinds = UpdateRule(type(self), index, group).kinds if constrained else {}
            for param in group["params"]:
                # torch.distributed.checkpoint expects no state of what is frozen, and it takes memory
                if not has_values(param) or not (param.requires_grad or (constrained and is_dtensor(param))):
                    continue
                if constrained:
                    init_state(param, kinds, group, self.state[param])
                else:
                    ordinary.init_state(param, group, self.state[param], eager=True)
            if constrained:
                lay_states_together(group, self.state)
