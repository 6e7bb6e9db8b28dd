"""What an update is written with: a direction, sums over columns, also where ranks share them, and what it returns.

A function of matrices whose columns may lie on several ranks is a generator. It is given matrices (B, p, n′), all of
their columns or a piece of them. It yields lists of partial sums, small ones (p×p, or one number per matrix), and is
sent the sums over all pieces, which are its to write to. It may also yield another function of this kind, and is sent
what that one returns.

    def distance(x):
        (gram,) = yield [x @ x.mH]
        return norm(subtract_identity(gram))

Where the matrices are whole, a partial sum is the sum: :func:`on_one_device`. Over ranks it is an all-reduce.

(``yield from`` would do for functions inside of functions, but torch.compile does not trace what is sent through it.
A ``yield`` is a statement of its own, outside of loops: torch 2.9 leaves a value on the stack where one is resumed.)
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from orthoptim.stiefel.batches import Numbers, max_entry

T = TypeVar("T")
ColumnSums = Generator[list[Tensor] | Generator[Any, Any, Any], Any, T]
"""A function of this kind, called; T is what it returns."""


@dataclass
class Direction:
    """The direction G, to be descended: matrices (B, p, n), times a factor (B,) of each where it is not ``None``.

    A factor apart costs no pass over memory: it can be multiplied into smaller things. Where the matrices are pieces,
    it is known with the first sums over columns, not before: VAdam's depends on ‖∇f‖.

    Attributes:
        matrices: G up to its factor.
        numbers: the factor; a Python number where the batch is one matrix on a CPU.
        normalized: whether ‖G‖_F is of order one for any gradient.
        known: whether ``numbers`` is the factor; else :meth:`set_scale` will say.
    """

    matrices: Tensor
    numbers: Numbers | None = None
    normalized: bool = False
    known: bool = True

    @property
    def scale(self) -> Tensor | None:
        """The factor of each matrix; ``None``: one."""
        if not self.known:
            raise RuntimeError("the factor of a direction is known from the first sums over columns on, not before")
        if isinstance(self.numbers, float):
            self.numbers = self.matrices.real.new_full((1,), self.numbers)
        return self.numbers

    def set_scale(self, scale: Tensor | None) -> None:
        """Make the factor known."""
        self.numbers, self.known = scale, True

    def times(self, factor: Tensor) -> Tensor:
        """What to multiply ``matrices`` by to have factor·G: a number, or (B, 1, 1).

        Args:
            factor: a number, or one for each matrix.
        """
        product = factor
        if self.scale is not None:  # that of a direction of zeros may be huge: infinity times zero is no number
            largest = torch.finfo(self.scale.dtype).max
            product = (factor * self.scale).clamp(-largest, largest)
        return product[:, None, None] if product.ndim else product

    def whole(self) -> Tensor:
        """G itself."""
        return self.matrices if self.scale is None else self.matrices * self.scale[..., None, None]


class Update(NamedTuple):
    """What a method makes of one block.

    Attributes:
        x: the new matrices, (B, p, n).
        state: the new values of the buffers of the method.
        clipped: which matrices had their step shortened, (B,); a bool is for all of them.
        rescued: which matrices were too far from the manifold to land as they were, (B,).
        finiteness_probe: a number per matrix that is finite only if all columns of X are, the same on every rank that
            holds some of them, (B,). ``None``: the engine adds up the entries of X, which over ranks takes one more
            all-reduce.
        covers_direction: whether the probe is finite only if the direction is, too.
        finite: whether it is known that the direction and X are finite.
    """

    x: Tensor
    state: dict[str, Tensor] = {}  # noqa: RUF012  (a NamedTuple default; never changed)
    clipped: Any = None  # Tensor | bool | None
    rescued: Tensor | None = None
    finiteness_probe: Tensor | None = None
    covers_direction: bool = False
    finite: bool = False


FLAGS = ("clipped", "rescued")
"""What is counted of an :class:`Update`."""


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
