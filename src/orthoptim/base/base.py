"""What a base optimizer is: the part that turns a gradient into a direction G."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

Kind = Literal["entries", "moduli", "matrices", "counters", "streams"]
"""What a state tensor holds: a value of each entry, a real one of each entry; of each matrix a real value, a count, or
64 bits that tell its random numbers from another's."""

State = dict[str, Tensor]


class Direction(NamedTuple):
    """The direction G, to be descended: matrices (B, p, n), times a factor (B,) of each where it is not ``None``.

    A factor apart costs no pass over memory: it can be multiplied into smaller things.
    """

    matrices: Tensor
    scale: Tensor | None = None

    def whole(self) -> Tensor:
        """G itself."""
        return self.matrices if self.scale is None else self.matrices * self.scale[..., None, None]


def per_matrix(kind: Kind) -> bool:
    """Whether there is one value for each matrix, not for each entry."""
    return kind not in ("entries", "moduli")


def state_dtype(kind: Kind, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a state tensor, where matrices are computed in the given one."""
    if kind == "counters":
        return torch.int32  # a processor makes floats of eight at a time, but of int64 of one
    if kind == "streams":
        return torch.int64
    return dtype if kind == "entries" else dtype.to_real()


class Base(ABC):
    """A base optimizer: hyperparameters to be copied into a param group, and a pure function.

    An instance only carries (validated) hyperparameters; the optimizer writes them into its param groups as plain
    values, where schedulers and users may change them, and calls :meth:`direction` with what stands there.
    Subclasses set ``name`` and are then found by it, also when a ``state_dict`` is loaded.

    Attributes:
        name: how param groups refer to it.
        names: of its hyperparameters, the arguments of ``__init__``.
        normalized: whether the norm of its direction is of order one for any gradient.
        entrywise: whether the direction of an entry depends on the other entries through :meth:`statistic` alone,
            and that enters only the factor of the direction and the state of each matrix, not that of entries.
        linear: whether the direction is a linear combination of the gradients, as that of momentum is.
        default_lr: the learning rate to take when none is given; None: there must be one.
        default_landing: the landing that POGO takes when none is given; None: POGO's own default.
        hyperparameters: plain values, by the names torch.optim uses.
    """

    name: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    default_lr: ClassVar[float | None] = None
    default_landing: ClassVar[str | None] = None
    normalized: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    entrywise: ClassVar[bool] = False
    _registry: ClassVar[dict[str, type["Base"]]] = {}

    def __init__(self, **hyperparameters: Any) -> None:
        self.hyperparameters = hyperparameters

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.names = tuple(name for name in inspect.signature(cls.__init__).parameters if name != "self")
        Base._registry[cls.name] = cls

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value}" for key, value in self.hyperparameters.items())
        return f"{type(self).__name__}({arguments})"

    @staticmethod
    def named(name: str) -> type["Base"]:
        """The base optimizer that a param group names.

        Example:
            >>> Base.named("sgd").__name__
            'SGD'
        """
        if name not in Base._registry:
            raise ValueError(f"Invalid base: {name!r}; known are {', '.join(sorted(Base._registry))}")
        return Base._registry[name]

    @staticmethod
    def all() -> list[type["Base"]]:
        """Every base optimizer there is."""
        return list(Base._registry.values())

    @staticmethod
    @abstractmethod
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """The state it keeps, by name. All of it starts at zero."""

    @staticmethod
    def statistic(grad: Tensor) -> Tensor | None:
        """What the direction needs to know of the whole gradient: a sum over its entries, one value per matrix."""
        return None

    @staticmethod
    @abstractmethod
    def direction(
        x: Tensor, grad: Tensor, statistic: Tensor | None, state: State, t: Tensor, **hyperparameters: Any
    ) -> tuple[Direction, State]:
        """The direction G, to be descended, and the new state; changes none of its arguments.

        Where the gradient of a matrix is not finite, G is not finite either: that is how such a step is found.

        Args:
            x: the matrices, of shape (B, p, n).
            grad: their gradient.
            statistic: what :meth:`statistic` makes of it.
            state: the buffers, of shape (B, p, n), or (B,) for kinds that are :func:`per_matrix`.
            t: for each matrix, the number of this step, from 1; shape (B,), real.
            **hyperparameters: those of the instance, as they stand in the param group.
        """


def bias_correction(beta: float, t: Tensor) -> Tensor:
    """1 − βᵗ per matrix.

    By expm1: at t = 1 and β = 0.999 the plain formula loses four of float32's seven digits.
    """
    return -torch.expm1(t * (math.log(beta) if beta > 0 else -math.inf))
