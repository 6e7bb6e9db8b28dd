"""Functions of matrices whose columns may lie on several ranks, written once as the sums over columns that they need.

Such a function is a generator. It is given matrices (B, p, n′), all of their columns or a piece of them. It yields
lists of partial sums, small ones (p×p, or one number per matrix), and is sent the sums over all pieces, which are its
to write to. It may also yield another function of this kind, and is sent what that one returns.

    def distance(x):
        (gram,) = yield [x @ x.mH]
        return norm(subtract_identity(gram))

Where the matrices are whole, a partial sum is the sum: :func:`on_one_device`. Over ranks it is an all-reduce.

(``yield from`` would do for functions inside of functions, but torch.compile does not trace what is sent through it.
A ``yield`` is a statement of its own, outside of loops: torch 2.9 leaves a value on the stack where one is resumed.)
"""

from collections.abc import Generator
from typing import Any, TypeVar

from torch import Tensor

from orthoptim.stiefel.geometry import max_entry

T = TypeVar("T")
ColumnSums = Generator[list[Tensor] | Generator[Any, Any, Any], Any, T]
"""A function of this kind, called; T is what it returns."""


def on_one_device(steps: ColumnSums[T]) -> T:
    """What a function of whole matrices returns.

    Example:
        >>> import torch
        >>> def square(x):
        ...     (gram,) = yield [x @ x.mH]
        ...     return gram
        >>> on_one_device(square(torch.tensor([[3.0, 4.0]])))
        tensor([[25.]])
    """
    answer: Any = None  # which starts a generator
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.args[0]  # its value; torch.compile does not trace the property of that name
            return result
        answer = wanted if isinstance(wanted, list) else on_one_device(wanted)


def flatten(steps: ColumnSums[T]) -> Generator[list[Tensor], list[Tensor], T]:
    """The same function, which yields lists alone: also those of the functions inside of it."""
    answer: Any = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer = (yield wanted) if isinstance(wanted, list) else (yield from flatten(wanted))


def largest(a: Tensor) -> Tensor:
    """The largest entry of each matrix, zero where there are none: the sum over pieces bounds that of all columns."""
    return max_entry(a) if a.numel() else a.real.new_zeros(a.shape[:-2])
