"""Files that are whole or not there: written beside their place, then moved into it."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PREFIX_BYTES = 200
"""How much of a file's name its temporary one repeats: file systems allow 255 bytes."""

_ATTEMPTS = 100


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``path`` when the block ends, and is removed if the block raises.

    The data is on the disk before the name points to it, and the name before this returns. A link is followed, and a
    file that is replaced keeps its permissions, as if it had been opened and written to. A process that is killed
    leaves its temporary file, ``.<name>.<random>.tmp`` in the same folder; nothing reads it, and it may be deleted.

    Raises:
        OSError: If the file cannot be written; it names ``path``, where the former file still is.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{_shortened(target.name)}.{secrets.token_hex(8)}.tmp")
    try:
        mode = _mode(target)
        # the umask applies to a new file
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                if mode is not None:
                    os.chmod(temporary, mode)
                os.fsync(handle)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from None


def write(path: Path, data: bytes) -> None:
    """Write a file, creating its folder; a file that was there is replaced at once or left as it was.

    Raises:
        OSError: If the folder or the file cannot be written; it names the file.
    """
    for attempt in range(_ATTEMPTS):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        try:
            with replacing(path) as file:
                file.write(data)
            return
        except FileNotFoundError:  # another process has removed the folder, empty as it was, in between
            if attempt + 1 == _ATTEMPTS:
                raise


def _mode(target: Path) -> int | None:
    """The permissions of a file that is there; it must be an ordinary one, as a device would be replaced, too."""
    with suppress(FileNotFoundError):
        mode = target.stat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        return stat.S_IMODE(mode)
    return None


def _shortened(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:PREFIX_BYTES])


def _sync_folder(folder: Path) -> None:
    """Wait until the new name is on the disk, where a folder can be opened for that."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync files only
            raise
    finally:
        os.close(handle)
