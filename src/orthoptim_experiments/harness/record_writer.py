"""Writing records: whole lines, by one process at a time.

Every line is one write, so a process that dies leaves whole lines behind it, and perhaps a torn last one, which is put
aside. A file with defects is refused: results are never guessed, and never deleted.
"""

import errno
import fcntl
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orthoptim_experiments.harness.fields import LONGEST_LINE
from orthoptim_experiments.harness.record_reader import check_regular, is_whole, load, open_regular
from orthoptim_experiments.harness.records import ResultsError, Run
from orthoptim_experiments.harness.text import one_line


class RunFile:
    """The writer of one run: appends whole lines, and locks the file against other writers.

    A line that cannot be written whole (a full disk) is taken back and raises ResultsError. A torn last line is put
    aside, into a file of the same name with ``.torn`` at its end. A file with defects is refused, and left as it is.

    Args:
        path: of the file; it is created, with its folder, if it is not there.
        header: the first line, but for ``kind``: ``id``, ``experiment``, ``config``, ``environment``, ``started``.
            An existing file keeps its own.

    Attributes:
        run: what the file held when it was opened.
    """

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_to_append(self.path)
        except OSError as error:
            raise ResultsError(one_line(f"cannot write {self.path}: {error.strerror}")) from None
        try:
            self._lock()
            self._repair(header)
        except BaseException:
            self.close()
            raise

    def append(self, kind: str, **values: Any) -> None:
        """Write one line.

        Raises:
            ResultsError: if it cannot be written.
            ValueError: if no reader would take a line so long.
        """
        line = json.dumps({"kind": kind, **_plain(values)}, allow_nan=False, ensure_ascii=False).encode() + b"\n"
        if len(line) > LONGEST_LINE:
            raise ValueError(f"a line of {len(line)} bytes is longer than the {LONGEST_LINE} that are read")
        self._write(line)

    def _write(self, line: bytes) -> None:
        end = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            while written < len(line):  # the next write of a full disk says why
                written += os.write(self._file, line[written:])
        except OSError as error:
            os.ftruncate(self._file, end)
            raise ResultsError(f"cannot write {self.path}: {error.strerror}; earlier results are kept") from None

    def sync(self) -> None:
        """Have the lines so far on the disk before going on."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise ResultsError(f"cannot write {self.path}: {error.strerror}; earlier results are kept") from None

    def close(self) -> None:
        """Close the file and give up the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "RunFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(f"{self.path} is being written by another process; wait for it to end") from None

    def _repair(self, header: Mapping[str, Any]) -> None:
        """End the last line or put it aside if it is torn, write the first one if there is none, and read the rest."""
        with open_regular(self.path) as file:
            data = file.read()
        end = data.rfind(b"\n") + 1
        torn, notice = data[end:], ""
        if end or is_whole(torn):
            run = load(self.path)
            if run.defects:
                raise ResultsError(f"{run.defects[0]}; repair or delete the file")
        if torn and is_whole(torn):
            self._write(b"\n")
        elif torn:
            aside = self.path.with_name(f"{self.path.name}.torn")
            self._put_aside(torn, aside)
            notice = one_line(f"{self.path}: the last line is torn ({len(torn)} bytes) and put aside, in {aside.name}")
            os.ftruncate(self._file, end)
        if not os.fstat(self._file).st_size:
            self.append("run", **header)
        self.run = load(self.path)
        self.run.notice = notice

    def _put_aside(self, torn: bytes, aside: Path) -> None:
        """Keep what is cut off this file, on the disk, before it is."""
        try:
            handle = _open_to_append(aside)
            with os.fdopen(handle, "ab") as file:
                file.write(torn + b"\n")
                file.flush()
                os.fsync(handle)
        except OSError as error:
            raise ResultsError(one_line(f"cannot write {aside}: {error.strerror}; nothing is changed")) from None


def _open_to_append(path: Path) -> int:
    """The handle of a file, made if it is not there; a link, which may lead anywhere, or a device is refused."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(error.errno, "it is a symbolic link") from None
        raise
    try:
        check_regular(handle)
    except OSError:
        os.close(handle)
        raise
    return handle


class DiscardingRunFile:
    """A :class:`RunFile` that writes nothing, for the ranks whose first rank writes.

    Args:
        path: of the file.
        header: as that of a :class:`RunFile`.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.run = Run(path, **header)

    def append(self, kind: str, **values: Any) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def __enter__(self) -> "DiscardingRunFile":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _plain(value: Any) -> Any:
    """The value as JSON has it, numbers that are not finite as None, texts in valid Unicode."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return value
