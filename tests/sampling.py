"""Parameters of which every run takes a sample, and `make soak` all."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """The values for ``parametrize``: the first ones as they are, the others behind the soak marker."""
    return [value if k < count else pytest.param(value, marks=pytest.mark.soak) for k, value in enumerate(values)]
