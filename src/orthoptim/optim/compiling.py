"""torch.compile for the update of a block."""

import itertools
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_numbers = itertools.count()


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """Compile a function for the one shape it will be called with; where that fails, warn once and go on without.

    torch.compile counts the versions it makes of one code object, and gives up after eight. A code object of its own
    for each kind of block keeps these counts apart.
    """

    def call(*args: Any) -> T:
        return function(*args)

    code = call.__code__.replace(co_name=f"advance_{next(_numbers)}")
    fresh = FunctionType(code, call.__globals__, code.co_name, call.__defaults__, call.__closure__)
    fast: Callable[..., T] = torch.compile(fresh, fullgraph=True, dynamic=False)
    failed = False

    def run(*args: Any) -> T:
        nonlocal failed
        if not failed:
            try:
                return fast(*args)
            except Exception as error:  # whatever a compiler may raise; what the function itself raises comes again
                failed = True
                result = function(*args)
                _warn_once(error)
                return result
        return function(*args)

    return run


_warned = False


def _warn_once(error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        reason = (str(error).strip().splitlines() or [""])[0]
        warnings.warn(f"compile=True: stepping without, as torch.compile failed: {reason}", stacklevel=2)
