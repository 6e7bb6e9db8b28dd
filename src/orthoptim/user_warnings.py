"""Warnings that point at the line of the user who caused them."""

import sys
import warnings

_PACKAGES = ("orthoptim", "torch")


def warn_user(message: str) -> None:
    """Warn at the innermost line that neither this library nor torch has written, however deep the call is."""
    level = 2  # of the frame below; the first is that of this function
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)
