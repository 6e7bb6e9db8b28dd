"""What a base optimizer is: the part that turns a gradient into a direction G."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from orthoptim.stiefel import Direction

Kind = Literal["entries", "moduli", "matrices", "counters", "streams"]
"""What a state tensor holds: a value of each entry, a real one of each entry; of each matrix a real value, a count, or
64 bits that tell its random numbers from another's."""

State = dict[str, Tensor]


def per_matrix(kind: Kind) -> bool:
    """Whether there is one value for each matrix, not for each entry."""
    return kind not in ("entries", "moduli")


def state_dtype(kind: Kind, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a state tensor, where matrices are computed in the given one."""
    if kind == "counters":
        return torch.int32  # int32→float conversion vectorises; int64→float does not
    if kind == "streams":
        return torch.int64
    return dtype if kind == "entries" else dtype.to_real()


class Base:
    """A base optimizer: hyperparameters to be copied into a param group, and pure functions.

    An instance only carries (validated) hyperparameters; the optimizer writes them into its param groups as plain
    values, where schedulers and users may change them, and passes what stands there to the functions below.
    Subclasses set ``name``, which a param group and a ``state_dict`` refer to.

    Most directions are a scalar of each matrix times something of each entry. Such a base states them apart, and then
    steps whole matrices, pieces of them on several ranks, and single entries in a compiled loop:

    - :meth:`advance`, entry by entry: G up to a factor, and the new state of each entry;
    - :meth:`statistic`, a sum over the entries of the gradient: one value per matrix;
    - :meth:`scale`, from that sum: the factor of G, and the new state of each matrix.

    A base that needs whole matrices sets ``whole_matrix`` and overrides :meth:`direction` instead.

    Attributes:
        name: how param groups refer to it.
        names: of its hyperparameters, the arguments of ``__init__``.
        normalized: whether the norm of its direction is of order one for any gradient.
        whole_matrix: whether the direction of an entry depends on other entries through more than the factor.
        linear: whether the direction is a linear combination of the gradients, as that of momentum is.
        default_lr: the learning rate to take when none is given; None: there must be one.
        default_landing: the landing that POGO takes when none is given; None: POGO's own default.
        default_curvature: the ``c2`` that a line search takes when none is given; None: none.
        hyperparameters: plain values, by the names torch.optim uses.
    """

    name: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    default_lr: ClassVar[float | None] = None
    default_landing: ClassVar[str | None] = None
    default_curvature: ClassVar[float | None] = None
    normalized: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    whole_matrix: ClassVar[bool] = False
    _registry: ClassVar[dict[str, type["Base"]]] = {}

    def __init__(self, **hyperparameters: Any) -> None:
        self.hyperparameters = hyperparameters

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        defined = {name for parent in cls.__mro__[: cls.__mro__.index(Base)] for name in vars(parent)}
        if defined & {"advance", "direction"} != ({"direction"} if cls.whole_matrix else {"advance"}):
            raise TypeError(f"{cls.__name__} must define advance; or direction, and set whole_matrix = True")
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
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """The state it keeps, by name. All of it starts at zero."""
        return {}

    @staticmethod
    def advance(grad: Tensor, state: State, t: Tensor, **hyperparameters: Any) -> tuple[Tensor, State]:
        """G up to a factor per matrix, and the new state of each entry; changes none of its arguments.

        Every entry of the results depends on the same entry of the arguments alone. Where an entry of the gradient is
        not finite, G is not finite either (there, or by its factor): that is how the engine knows such a matrix.

        Args:
            grad: the gradient: matrices, pieces of them, or single entries of each, of any shape.
            state: the buffers with a value per entry, of the same shape.
            t: the number of this step, from 1, real; one for each matrix, of a shape that broadcasts against ``grad``.
            **hyperparameters: those of the instance, as they stand in the param group.
        """
        raise NotImplementedError

    @staticmethod
    def statistic(grad: Tensor) -> Tensor | None:
        """A sum over the entries of the gradient (B, p, n), one value per matrix; None: there is nothing to know.

        The engine adds up the statistics of pieces, where matrices are in pieces.
        """
        return None

    @staticmethod
    def scale(statistic: Tensor | None, state: State, t: Tensor, **hyperparameters: Any) -> tuple[Tensor | None, State]:
        """The factor of G (None: one), and the new state of each matrix; changes none of its arguments.

        Args:
            statistic: that of whole matrices, (B,).
            state: the buffers with a value per matrix, (B,).
            t: the number of this step of each matrix, from 1, real, (B,).
            **hyperparameters: those of the instance, as they stand in the param group.
        """
        return None, {}

    @staticmethod
    def scale_on_host(grad: Tensor, state: State, t: Tensor, **hyperparameters: Any) -> tuple[float, State] | None:
        """:meth:`scale` of a single matrix on a CPU, whose gradient is given, in Python's numbers; None: there is none.

        A step of a small matrix is mostly arithmetic on such numbers, which takes torch microseconds each.
        """
        return None

    @classmethod
    def direction(
        cls, x: Tensor, grad: Tensor, state: State, t: Tensor, **hyperparameters: Any
    ) -> tuple[Direction, State]:
        """The direction G of whole matrices, where ``whole_matrix``, and the new state; changes none of its arguments.

        Where the gradient of a matrix is not finite, G is not finite either.

        Args:
            x: the matrices, of shape (B, p, n).
            grad: their gradient.
            state: the buffers, of shape (B, p, n), or (B,) for kinds that are :func:`per_matrix`.
            t: for each matrix, the number of this step, from 1; shape (B,), real.
            **hyperparameters: those of the instance, as they stand in the param group.
        """
        raise NotImplementedError
