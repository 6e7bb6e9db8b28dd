"""The records of a run: trials, and what was measured in them.

A run is one append-only JSONL file. A line is one JSON object with a ``kind``:

- ``run``: what is run, and where; the first line, once.
- ``trial``: one method begins on one seed. A second such line for the same trial voids all earlier lines of it.
- ``record``: what was measured after ``step`` steps and ``time`` seconds of training, ``processor_time`` of them by the
  processor; ``optimizer_time`` of those that count were spent in the optimizer's own steps.
- ``picture``: an image that a trial has drawn, by name; the bytes of a PNG file in base64.
- ``resume``: the trial goes on from ``step``, after an interruption or a timeout; later records before it are void.
- ``end``: how the trial ended.

Lines are JSON rather than rows of sqlite3: a killed process leaves whole lines behind, and results can be read by grep,
diffed and committed; a database would save the reader's checks of types only.
"""

import math
import os
from collections.abc import Mapping, Sequence
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
    """The records of one file.

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

    def to_dataframe(self) -> Any:
        """A pandas data frame with one row for each record."""
        from orthoptim_experiments.harness.export import dataframe

        return dataframe(self)

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write one line for each record, and return the path."""
        from orthoptim_experiments.harness.export import csv_text

        Path(path).write_text(csv_text(self), encoding="utf-8")
        return Path(path)

    def to_latex(self, columns: Sequence[str] | None = None) -> str:
        """A table of last values and times by method, with confidence intervals."""
        from orthoptim_experiments.harness.export import latex

        return latex(self, columns)

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of their beginning."""
        return list(dict.fromkeys(trial.method for trial in self.trials))
