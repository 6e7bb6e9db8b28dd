"""Reading records: whatever is wrong in a file is left out and reported by file and line; the rest is used."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from orthoptim_experiments.harness import fields
from orthoptim_experiments.harness.fields import DefectError
from orthoptim_experiments.harness.records import STATUSES, ResultsError, Run, Trial
from orthoptim_experiments.harness.text import excerpt, one_line

MOST_TRIALS = 10_000
MOST_METHODS = 200
MOST_COLUMNS = 60
"""The limits of one run: far more than an experiment has, few enough to draw."""

MOST_DEFECTS = 50
"""The most defects that are listed; further ones are counted."""


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run. What is wrong in the file is left out and listed in the run's ``defects`` and ``notice``.

    Raises:
        ResultsError: if the file cannot be read or is no run: its first line does not say what was run.
    """
    path = Path(path)
    reader = _Reader(path)
    try:
        with open_regular(path) as file:
            for line in _lines(file):
                reader.read_line(line)
    except OSError as error:
        raise ResultsError(one_line(f"cannot read {path}: {error.strerror}")) from None
    if reader.run is None:
        raise ResultsError(one_line(f"{path} holds no run: it is empty"))
    return reader.finish(reader.run)


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
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """The file, for reading. A pipe or a device, which may never end, is refused."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        check_regular(handle)
        yield file


def check_regular(handle: int) -> None:
    """Raise OSError unless the handle is that of a regular file."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(None, "not a regular file")


def is_whole(line: bytes) -> bool:
    """Whether a line without a line feed is a complete JSON object: no proper prefix of an object is one."""
    try:
        fields.parse(line)
    except DefectError:
        return False
    return True


class _Reader:
    """Builds a Run, line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: Run | None = None
        self._trials: dict[tuple[str, int], Trial] = {}
        self._methods: set[str] = set()
        self._columns: set[str] = set()
        self._number = 0
        self._more_defects = 0

    def read_line(self, line: _Line) -> None:
        self._number = line.number
        if not line.ended and not is_whole(line.data):
            torn = f"the last line is torn ({line.size} bytes)"
            if self.run is None:
                raise ResultsError(self._locate(f"{torn}, and there is no other: it holds no run"))
            self.run.notice = self._locate(f"{torn} and left out")
            return
        try:
            if line.size >= fields.LONGEST_LINE:
                raise DefectError(f"the line has {line.size} bytes, more than {fields.LONGEST_LINE}")
            if self.run is None:
                self._read_header(line.data)
            else:
                self._read_entry(fields.parse(line.data), self.run)
        except DefectError as defect:
            if self.run is None:
                raise ResultsError(self._locate(f"{defect}; it holds no run")) from None
            self._add_defect(str(defect))

    def finish(self, run: Run) -> Run:
        """The run, once all lines are read."""
        if self._more_defects:
            run.defects.append(one_line(f"{self.path}: {self._more_defects} more defects"))
        return run

    def _locate(self, what: str) -> str:
        return one_line(f"{self.path}:{self._number}: {what}")

    def _add_defect(self, what: str) -> None:
        if self.run is not None and len(self.run.defects) < MOST_DEFECTS:
            self.run.defects.append(self._locate(what))
        else:
            self._more_defects += 1

    def _read_header(self, line: bytes) -> None:
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DefectError("the file is UTF-16, not UTF-8")
        entry = fields.parse(line)
        if entry.get("kind") != "run":
            raise DefectError("the first line must be of kind 'run'")
        names = (fields.required(entry, field, fields.name) for field in ("id", "experiment", "started"))
        identity, experiment, started = names
        self.run = Run(self.path, identity, experiment, {}, {}, started)
        self.run.config = fields.table(entry, "config", self._add_defect, fields.CONFIG)
        self.run.environment = fields.table(entry, "environment", self._add_defect)

    def _read_entry(self, entry: dict[str, Any], run: Run) -> None:
        kind = fields.required(entry, "kind", fields.name)
        if kind not in ("trial", "record", "picture", "resume", "end"):
            raise DefectError(
                "only the first line may be of kind 'run'" if kind == "run" else f"unknown kind {excerpt(kind)}"
            )
        key = (fields.required(entry, "method", fields.name), fields.required(entry, "seed", fields.count))
        if kind == "trial":
            self._begin_trial(key, entry, run)
            return
        if key not in self._trials:
            raise DefectError(f"{excerpt(key[0])} on seed {key[1]} has not begun")
        trial = self._trials[key]
        if kind == "record":
            self._record(trial, entry)
        elif kind == "picture":
            trial.pictures[fields.required(entry, "name", fields.name)] = fields.required(entry, "png", fields.png)
        elif kind == "resume":
            trial.truncate(fields.required(entry, "step", fields.count))
            trial.status, trial.message = None, ""  # one that had timed out goes on
        else:
            self._end(trial, entry)

    def _begin_trial(self, key: tuple[str, int], entry: dict[str, Any], run: Run) -> None:
        if key in self._trials:
            run.trials.remove(self._trials[key])
        elif len(self._trials) >= MOST_TRIALS:
            raise DefectError(f"more than {MOST_TRIALS} trials")
        elif key[0] not in self._methods and len(self._methods) >= MOST_METHODS:
            raise DefectError(f"more than {MOST_METHODS} methods")
        options = fields.table(entry, "options", self._add_defect)
        trial = Trial(*key, options, fields.table(entry, "environment", self._add_defect))
        self._trials[key] = trial
        self._methods.add(trial.method)
        run.trials.append(trial)

    def _record(self, trial: Trial, entry: dict[str, Any]) -> None:
        step = fields.required(entry, "step", fields.count)
        time = fields.required(entry, "time", fields.duration)
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
        status = fields.required(entry, "status", fields.name)
        if status not in STATUSES:
            raise DefectError(f"unknown status {excerpt(status)}")
        message, digest = (fields.text(entry.get(field), field) for field in ("message", "digest"))
        trial.status, trial.message, trial.digest = status, message, digest
