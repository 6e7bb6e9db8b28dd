"""Standard streams that are closed, full, or of an encoding that lacks the characters written to them."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def patient_streams() -> Iterator[None]:
    """Within it, no state of the standard streams ends in a traceback.

    A letter that a stream cannot encode is written as its escape. A stream that was closed before the start takes what
    is written, and its number is not given to a file opened later. A reader that goes away ends the program, with
    status 1 and without a word; a full disk, with status 2 and one line.
    """
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="backslashreplace")
    with _one_line():
        try:
            yield
        finally:
            sys.stdout.flush()  # at the end of the interpreter it is too late to say in one line that it fails


def _open_closed() -> None:
    """Open the null device in the place of each standard stream that is closed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            handle = os.open(os.devnull, os.O_RDWR)  # gets the least free number
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """End the program in one line if standard output fails, and silently if its reader has gone."""
    try:
        yield
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)  # or the interpreter tries again
        os.close(null)
        if error.errno == errno.EPIPE:
            raise SystemExit(1) from None
        print(f"orthoptim: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
