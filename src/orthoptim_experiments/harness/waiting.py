"""Waiting for what other processes do."""

import time
from collections.abc import Callable


def wait_until(happened: Callable[[], bool], seconds: float, hurry: Callable[[], bool] = lambda: False) -> bool:
    """Wait so long at most, or until somebody is in a hurry; whether it has happened.

    Example:
        >>> wait_until(lambda: True, 0.0)
        True
    """
    deadline = time.monotonic() + seconds
    while not happened():
        if hurry() or time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
