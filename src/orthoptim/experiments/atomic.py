"""Files that are whole or not there: written beside their place, then moved into it."""

import os
import tempfile
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Writes a file, creating its folder; a file that was there is replaced at once or left as it was.

    Raises:
        OSError: If the folder or the file cannot be written; it names the file.
    """
    try:
        handle, name = _beside(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp's files are private
        os.replace(name, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        Path(name).unlink(missing_ok=True)


def _beside(path: Path) -> tuple[int, str]:
    """A new file in the folder of another, which is made if it is not there: its handle and its path."""
    for attempt in range(100):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except FileNotFoundError:  # another process has removed the folder, empty as it was, in between
            if attempt == 99:
                raise
    raise AssertionError("unreachable")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
