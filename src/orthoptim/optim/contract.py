"""What a method provides: its update as a pure function, and what the engine must know about it."""

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from orthoptim.base import Base, Direction, Kind, State
from orthoptim.engine.rule import base_keys
from orthoptim.optim.common_options import show_common_options
from orthoptim.stiefel import ColumnSums, Table, Unrolled, Update, on_one_device


class UpdateContract:
    """The part of :class:`Orthoptimizer` that a method overrides. All of it are functions of their arguments alone.

    Attributes:
        algorithm: the name of the method in param groups.
        decomposes: whether ``update`` may raise on what is not finite.
        unrolls: whether there is an ``update_entries``.
        has_kernels: whether ``engine.kernels`` computes what ``update`` does; not inherited.
        base_options: arguments of ``__init__`` that it gives to its base.
        option_names: the options of a param group, without those of its base.
        plan_options: those of them that a plan depends on.
    """

    algorithm: ClassVar[str]
    decomposes: ClassVar[bool] = False
    unrolls: ClassVar[bool] = False
    has_kernels: ClassVar[bool] = False
    base_options: ClassVar[frozenset[str]] = frozenset()
    option_names: ClassVar[frozenset[str]]
    plan_options: ClassVar[tuple[str, ...]]
    _takes_any: ClassVar[bool] = False  # keyword arguments, whatever their names

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        parameters = show_common_options(cls).parameters
        cls.option_names = frozenset(parameters) - cls.base_options - {"self", "params"}
        cls.plan_options = ("base", *sorted(cls.option_names - {"lr", "base"}))
        cls._takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())

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

    @classmethod
    def hyperparameters(cls, group: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the base optimizer, as they stand in a group."""
        keys = base_keys(Base.named(group["base"]), cls.option_names)
        return {name: group[key] for name, key in keys.items()}

    @staticmethod
    def known_names() -> set[str]:
        """Every option that some method or base optimizer has."""
        classes: list[Any] = [UpdateContract]
        for each in classes:
            classes.extend(each.__subclasses__())
        methods = [each.option_names for each in classes if hasattr(each, "algorithm")]
        return {name for base in Base.all() for name in base.names}.union(*methods)
