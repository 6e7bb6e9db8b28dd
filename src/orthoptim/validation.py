"""Checks of single hyperparameters: each raises ValueError with the name and the value, in torch.optim's words."""

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


def check_number(name: str, value: Any) -> None:
    """A finite real number; ``True`` is none."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"Invalid {name} value: {value!r}; it must be a finite number")


def check_nonnegative(name: str, value: Any) -> None:
    """A finite number ≥ 0."""
    check_number(name, value)
    if value < 0:
        raise ValueError(f"Invalid {name} value: {value!r}; it must not be negative")


def check_positive(name: str, value: Any) -> None:
    """A finite number > 0."""
    check_number(name, value)
    if value <= 0:
        raise ValueError(f"Invalid {name} value: {value!r}; it must be positive")


def check_integer(name: str, value: Any) -> None:
    """An integer; ``True`` and ``2.0`` are none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"Invalid {name} value: {value!r}; it must be an integer")


def check_positive_integer(name: str, value: Any) -> None:
    """An integer ≥ 1."""
    check_integer(name, value)
    if value < 1:
        raise ValueError(f"Invalid {name} value: {value!r}; it must be at least 1")


def check_bool(name: str, value: Any) -> None:
    """``True`` or ``False``, or 1 or 0 as configuration files write them."""
    if not isinstance(value, bool | int) or value not in (0, 1):
        raise ValueError(f"Invalid {name} value: {value!r}; it must be True or False")


def check_pair(betas: Any) -> None:
    """Two values."""
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ValueError(f"Invalid betas value: {betas!r}; they must be two numbers, such as (0.9, 0.999)")


def check_betas(betas: Any) -> None:
    """Two numbers in [0, 1)."""
    check_pair(betas)
    for index, beta in enumerate(betas):
        if isinstance(beta, bool) or not isinstance(beta, Real) or not 0 <= float(beta) < 1:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta!r}; it must be in [0, 1)")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """One of the names."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"Invalid {name}: {value!r}; choose one of {', '.join(known)}")
