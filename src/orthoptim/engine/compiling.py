"""torch.compile for the update of a block."""

import itertools
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch

from orthoptim.user_warnings import warn_user

T = TypeVar("T")
_numbers = itertools.count()


class Compiled(Generic[T]):
    """A function compiled for the kind of arguments it will be called with; where that fails, one warns and goes on.

    torch.compile counts the versions it makes of one code object, and gives up after eight. A code object of its own
    for each kind of block keeps these counts apart.

    Args:
        function: what to compile.
        **options: those of torch.compile.
    """

    def __init__(self, function: Callable[..., T], **options: Any) -> None:
        def call(*args: Any) -> T:
            return function(*args)

        code = call.__code__.replace(co_name=f"advance_{next(_numbers)}")
        fresh = FunctionType(code, call.__globals__, code.co_name, call.__defaults__, call.__closure__)
        self._fast: Callable[..., T] = torch.compile(fresh, fullgraph=True, **options)
        self._failed = False

    def __call__(self, *args: Any, otherwise: Callable[[], T]) -> T:
        """The compiled function of the arguments; where it could not be compiled, what ``otherwise`` returns."""
        if not self._failed:
            try:
                return self._fast(*args)
            except Exception as error:  # whatever a compiler may raise; what the function itself raises comes again
                self._failed = True
                result = otherwise()
                _warn_once(error)
                return result
        return otherwise()


_warned = False


def _warn_once(error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        reason = (str(error).strip().splitlines() or [""])[0]
        warn_user(f"compile=True: stepping without, as torch.compile failed: {reason}")
