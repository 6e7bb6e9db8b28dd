"""The store of results: one append-only JSONL file per run, with a reader and a writer.

A line is one JSON object with a ``kind``:

- ``run``: what is run, and where; the first line, once.
- ``trial``: one method begins on one seed. A second such line for the same trial voids all that came before of it.
- ``record``: what was measured after ``step`` steps and ``time`` seconds of training.
- ``picture``: an image of what a trial has found, by name; the bytes of a PNG file in base64.
- ``resume``: the trial goes on from ``step``; its later records were written before an interruption and are void.
- ``end``: how the trial ended.

Every line is one write, so a process that dies leaves whole lines behind it, and perhaps a torn last one, which readers
leave out with a notice, and writers put aside. A file may come from anywhere: a reader leaves out what is wrong in it,
tells of each defect by file and line, and uses the rest. A writer refuses to add to a file that has defects: results
are never guessed, and never deleted.
"""

import errno
import fcntl
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, get_args

from orthoptim_experiments.harness import fields
from orthoptim_experiments.harness.fields import DefectError
from orthoptim_experiments.harness.text import excerpt, one_line

Status = Literal["converged", "budget", "diverged", "timeout", "failed"]

STATUSES: tuple[Status, ...] = get_args(Status)

MOST_TRIALS = 10_000
MOST_METHODS = 200
MOST_COLUMNS = 60
"""Of one run: far more than an experiment has, few enough to be drawn and shown."""

MOST_DEFECTS = 50
"""Told of one by one; further ones are counted."""


class ResultsError(Exception):
    """Results that cannot be read or written; the message is one line for the user."""


@dataclass
class Trial:
    """One method on one seed.

    Attributes:
        method: its name.
        seed: its seed.
        options: the hyperparameters.
        environment: where it ran.
        status: how it ended; None if it has not.
        message: what there is to say about the end.
        digest: digits that stand for the state at the end, where several processes trained; the same on all of them.
        records: columns of equal length, among them ``step`` and ``time``; what was not measured is nan.
        pictures: images of what it found, by name: the bytes of PNG files.
    """

    method: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    status: Status | None = None
    message: str = ""
    digest: str = ""
    records: dict[str, list[float]] = field(default_factory=lambda: {"step": [], "time": []})
    pictures: dict[str, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records["step"])

    def add(self, values: Mapping[str, float | None]) -> None:
        """Append a record."""
        count = len(self)
        for name in values:
            self.records.setdefault(name, [math.nan] * count)
        for name, column in self.records.items():
            value = values.get(name)
            column.append(math.nan if value is None else value)

    def truncate(self, step: float) -> None:
        """Drop the records after a step, which are in the order of steps."""
        kept = sum(1 for at in self.records["step"] if at <= step)
        for column in self.records.values():
            del column[kept:]


@dataclass
class Run:
    """What one file holds.

    Attributes:
        path: the file.
        id: digits that stand for the configuration.
        experiment: its name.
        config: all that determines the results, but method and seed.
        environment: versions and machine when the run was begun.
        started: when, in ISO format.
        trials: in the order of their beginning.
        notice: what is to be said of a torn last line; empty if there is none.
        defects: what the reader had to leave out, each in one line with file and line.
    """

    path: Path
    id: str
    experiment: str
    config: dict[str, Any]
    environment: dict[str, Any]
    started: str
    trials: list[Trial] = field(default_factory=list)
    notice: str = ""
    defects: list[str] = field(default_factory=list)

    def trial(self, method: str, seed: int) -> Trial | None:
        """The trial of a method on a seed, if it has begun."""
        return next((trial for trial in self.trials if (trial.method, trial.seed) == (method, seed)), None)

    def of(self, method: str) -> list[Trial]:
        """The trials of a method."""
        return [trial for trial in self.trials if trial.method == method]

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of their beginning."""
        return list(dict.fromkeys(trial.method for trial in self.trials))


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run. What is wrong in the file is left out and told of by the run's ``defects`` and ``notice``.

    Raises:
        ResultsError: if the file cannot be read or is no run: its first line does not say what was run.
    """
    path = Path(path)
    reader = _Reader(path)
    try:
        with _open_regular(path) as file:
            for line in _lines(file):
                reader.take(line)
    except OSError as error:
        raise ResultsError(one_line(f"cannot read {path}: {error.strerror}")) from None
    if reader.run is None:
        raise ResultsError(one_line(f"{path} holds no run: it is empty"))
    return reader.finished(reader.run)


class _Line(NamedTuple):
    """A line of a file: its number, its bytes (none if they are too many), their count, and whether it is ended."""

    number: int
    data: bytes
    size: int
    ended: bool


def _lines(file: BinaryIO) -> Iterator[_Line]:
    """The lines of a file, of which only so much is held in memory as a line may have."""
    number = 0
    while part := file.readline(fields.LONGEST_LINE):
        number, data, size = number + 1, part, len(part)
        while not part.endswith(b"\n") and (part := file.readline(fields.LONGEST_LINE)):
            data, size = b"", size + len(part)
        ended = (part or data).endswith(b"\n")
        yield _Line(number, data.removesuffix(b"\n"), size - ended, ended)


@contextmanager
def _open_regular(path: Path) -> Iterator[BinaryIO]:
    """The file, for reading. A pipe or a device, which may never end, is refused."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        _check_regular(handle)
        yield file


def _check_regular(handle: int) -> None:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(None, "not a regular file")


def _is_whole(line: bytes) -> bool:
    """Whether a line that does not end in a line feed lacks nothing else: no beginning of a JSON object is one."""
    try:
        fields.parse(line)
    except DefectError:
        return False
    return True


class _Reader:
    """Builds a Run line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: Run | None = None
        self._trials: dict[tuple[str, int], Trial] = {}
        self._methods: set[str] = set()
        self._columns: set[str] = set()
        self._number = 0
        self._untold = 0

    def take(self, line: _Line) -> None:
        self._number = line.number
        if not line.ended and not _is_whole(line.data):
            torn = f"the last line is torn ({line.size} bytes)"
            if self.run is None:
                raise ResultsError(self._at(f"{torn}, and there is no other: it holds no run"))
            self.run.notice = self._at(f"{torn} and left out")
            return
        try:
            if line.size >= fields.LONGEST_LINE:
                raise DefectError(f"the line has {line.size} bytes, more than {fields.LONGEST_LINE}")
            if self.run is None:
                self._begin(line.data)
            else:
                self._take(fields.parse(line.data), self.run)
        except DefectError as defect:
            if self.run is None:
                raise ResultsError(self._at(f"{defect}; it holds no run")) from None
            self._tell(str(defect))

    def finished(self, run: Run) -> Run:
        """The run, with all there is to tell."""
        if self._untold:
            run.defects.append(one_line(f"{self.path}: {self._untold} more defects"))
        return run

    def _at(self, what: str) -> str:
        return one_line(f"{self.path}:{self._number}: {what}")

    def _tell(self, what: str) -> None:
        if self.run is not None and len(self.run.defects) < MOST_DEFECTS:
            self.run.defects.append(self._at(what))
        else:
            self._untold += 1

    def _begin(self, line: bytes) -> None:
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DefectError("the file is UTF-16, not UTF-8")
        entry = fields.parse(line)
        if entry.get("kind") != "run":
            raise DefectError("the first line must be of kind 'run'")
        names = (fields.of(entry, field, fields.name) for field in ("id", "experiment", "started"))
        identity, experiment, started = names
        self.run = Run(self.path, identity, experiment, {}, {}, started)
        self.run.config = fields.table(entry, "config", self._tell, fields.CONFIG)
        self.run.environment = fields.table(entry, "environment", self._tell)

    def _take(self, entry: dict[str, Any], run: Run) -> None:
        kind = fields.of(entry, "kind", fields.name)
        if kind not in ("trial", "record", "picture", "resume", "end"):
            raise DefectError(
                "only the first line may be of kind 'run'" if kind == "run" else f"unknown kind {excerpt(kind)}"
            )
        key = (
            fields.of(entry, "method", fields.name),
            fields.of(entry, "seed", fields.count),
        )
        if kind == "trial":
            self._begin_trial(key, entry, run)
            return
        if key not in self._trials:
            raise DefectError(f"{excerpt(key[0])} on seed {key[1]} has not begun")
        trial = self._trials[key]
        if kind == "record":
            self._record(trial, entry)
        elif kind == "picture":
            trial.pictures[fields.of(entry, "name", fields.name)] = fields.of(entry, "png", fields.png)
        elif kind == "resume":
            trial.truncate(fields.of(entry, "step", fields.count))
        else:
            self._end(trial, entry)

    def _begin_trial(self, key: tuple[str, int], entry: dict[str, Any], run: Run) -> None:
        if key in self._trials:
            run.trials.remove(self._trials[key])
        elif len(self._trials) >= MOST_TRIALS:
            raise DefectError(f"more than {MOST_TRIALS} trials")
        elif key[0] not in self._methods and len(self._methods) >= MOST_METHODS:
            raise DefectError(f"more than {MOST_METHODS} methods")
        options = fields.table(entry, "options", self._tell)
        trial = Trial(*key, options, fields.table(entry, "environment", self._tell))
        self._trials[key] = trial
        self._methods.add(trial.method)
        run.trials.append(trial)

    def _record(self, trial: Trial, entry: dict[str, Any]) -> None:
        step = fields.of(entry, "step", fields.count)
        time = fields.of(entry, "time", fields.duration)
        if len(trial) and step <= trial.records["step"][-1]:
            raise DefectError(f"step {step} does not come after step {trial.records['step'][-1]}")
        if len(trial) and time < trial.records["time"][-1]:
            raise DefectError(f"time {time} comes before {trial.records['time'][-1]}")
        measured = {
            fields.name(name, "the name of a column"): None if value is None else fields.number(value, repr(name))
            for name, value in sorted(entry.items())
            if name not in ("kind", "method", "seed", "step", "time")
        }
        if len(self._columns | measured.keys()) > MOST_COLUMNS:
            raise DefectError(f"more than {MOST_COLUMNS} columns")
        self._columns |= measured.keys()
        trial.add({"step": step, "time": time, **measured})

    @staticmethod
    def _end(trial: Trial, entry: dict[str, Any]) -> None:
        status = fields.of(entry, "status", fields.name)
        if status not in STATUSES:
            raise DefectError(f"unknown status {excerpt(status)}")
        message, digest = (fields.text(entry.get(field), field) for field in ("message", "digest"))
        trial.status, trial.message, trial.digest = status, message, digest


class RunFile:
    """The writer of one run: appends whole lines, and lets no other process do so at the same time.

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
            self._mend(header)
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
        if len(line) > fields.LONGEST_LINE:
            raise ValueError(f"a line of {len(line)} bytes is longer than the {fields.LONGEST_LINE} that are read")
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

    def _mend(self, header: Mapping[str, Any]) -> None:
        """End the last line or put it aside if it is torn, write the first one if there is none, and read the rest."""
        with _open_regular(self.path) as file:
            data = file.read()
        end = data.rfind(b"\n") + 1
        torn, notice = data[end:], ""
        if end or _is_whole(torn):
            run = load(self.path)
            if run.defects:
                raise ResultsError(f"{run.defects[0]}; repair or delete the file")
        if torn and _is_whole(torn):
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
        _check_regular(handle)
    except OSError:
        os.close(handle)
        raise
    return handle


class Unwritten:
    """What takes the place of a :class:`RunFile` where another process writes it: it holds nothing and keeps nothing.

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

    def __enter__(self) -> "Unwritten":
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
