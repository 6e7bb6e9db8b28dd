"""The store of results: one append-only JSONL file per run, with a reader and a writer.

A line is one JSON object with a ``kind``:

- ``run``: what is run, and where; the first line, once.
- ``trial``: one method begins on one seed. A second such line for the same trial voids all that came before of it.
- ``record``: what was measured after ``step`` steps and ``time`` seconds of training.
- ``picture``: an image of what a trial has found, by name; the bytes of a PNG file in base64.
- ``resume``: the trial goes on from ``step``; its later records were written before an interruption and are void.
- ``end``: how the trial ended.

Every line is one write, so a process that dies leaves whole lines behind it, and perhaps a torn last one, which readers
drop with a notice. Anything else that cannot be read is an error that names the line: results are never guessed.
"""

import base64
import fcntl
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

Status = Literal["converged", "budget", "diverged", "timeout", "failed"]

STATUSES: tuple[Status, ...] = get_args(Status)


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
        notice: what the reader had to leave out; empty if nothing.
    """

    path: Path
    id: str
    experiment: str
    config: dict[str, Any]
    environment: dict[str, Any]
    started: str
    trials: list[Trial] = field(default_factory=list)
    notice: str = ""

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
    """Read a run.

    Raises:
        ResultsError: if the file cannot be read, is no run, or has a line, other than a torn last one, that is corrupt.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    whole, torn = split_torn(data)
    reader = _Reader(path)
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        reader.take(line, number)
    if reader.run is None:
        raise ResultsError(f"{path} holds no run: it is {'cut short' if data else 'empty'}; delete it")
    if torn:
        reader.run.notice = f"{path}: the last line is torn ({len(torn)} bytes) and left out"
    return reader.run


def split_torn(data: bytes) -> tuple[bytes, bytes]:
    """The whole lines, and what follows the last line feed: nothing, unless a write was cut off."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


class _Reader:
    """Builds a Run line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: Run | None = None
        self._trials: dict[tuple[str, int], Trial] = {}

    def take(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            self._take(entry)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = (
                "not JSON" if isinstance(error, ValueError) and not isinstance(error, _WrongError) else _reason(error)
            )
            raise ResultsError(f"{self.path}, line {number} is corrupt ({what}); repair or delete the file") from None

    def _take(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if (kind == "run") != (self.run is None):
            raise _WrongError("the first line, and no other, must be of kind 'run'")
        if kind == "run" or self.run is None:
            config, environment = dict(entry["config"]), dict(entry["environment"])
            self.run = Run(self.path, entry["id"], entry["experiment"], config, environment, entry["started"])
            return
        key = (str(entry["method"]), int(entry["seed"]))
        if kind == "trial":
            trial = Trial(*key, dict(entry["options"]), dict(entry["environment"]))
            if key in self._trials:
                self.run.trials.remove(self._trials[key])
            self._trials[key] = trial
            self.run.trials.append(trial)
            return
        if key not in self._trials:
            raise _WrongError(f"{key[0]} on seed {key[1]} has not begun")
        trial = self._trials[key]
        if kind == "record":
            trial.add({"step": _number(entry["step"]), "time": _number(entry["time"]), **_measured(entry)})
        elif kind == "picture":
            trial.pictures[str(entry["name"])] = _decoded(entry["png"])
        elif kind == "resume":
            trial.truncate(_number(entry["step"]))
        elif kind == "end":
            if entry["status"] not in STATUSES:
                raise _WrongError(f"unknown status {entry['status']!r}")
            trial.status, trial.message = entry["status"], entry.get("message") or ""
            trial.digest = entry.get("digest") or ""
        else:
            raise _WrongError(f"unknown kind {kind!r}")


class _WrongError(ValueError):
    """JSON that does not say what a line must say."""


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _WrongError(f"{value!r} is not a number")
    return value


def _decoded(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError:
        raise _WrongError("its picture is not base64") from None


def _measured(entry: Mapping[str, Any]) -> dict[str, float | None]:
    names = entry.keys() - {"kind", "method", "seed", "step", "time"}
    return {name: None if entry[name] is None else _number(entry[name]) for name in sorted(names)}


class RunFile:
    """The writer of one run: appends whole lines, and lets no other process do so at the same time.

    A line that cannot be written whole (a full disk) is taken back and raises ResultsError.

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
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ResultsError(f"cannot write {self.path}: {error.strerror}") from None
        try:
            self._lock()
            self._mend(header)
        except BaseException:
            self.close()
            raise

    def append(self, kind: str, **fields: Any) -> None:
        """Write one line."""
        line = json.dumps({"kind": kind, **_plain(fields)}, allow_nan=False, ensure_ascii=False).encode() + b"\n"
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
        """Cut a torn last line off, write the first one if there is none, and read the rest."""
        data = self.path.read_bytes()
        whole, torn = split_torn(data)
        notice = load(self.path).notice if whole else ""
        if torn:
            os.ftruncate(self._file, len(whole))
        if not whole:
            self.append("run", **header)
        self.run = load(self.path)
        self.run.notice = notice


class Unwritten:
    """What takes the place of a :class:`RunFile` where another process writes it: it holds nothing and keeps nothing.

    Args:
        path: of the file.
        header: as that of a :class:`RunFile`.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.run = Run(path, **header)

    def append(self, kind: str, **fields: Any) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def __enter__(self) -> "Unwritten":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _plain(value: Any) -> Any:
    """The value as JSON has it, numbers that are not finite as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
