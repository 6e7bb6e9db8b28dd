"""Tables of the guides, as Markdown: a line for each contender of a run."""

import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.problems.rotations.claims import paired

Cell = Callable[[Run, str], str]
"""What a table says of a run's method."""


def table(run: Run, columns: Mapping[str, Cell]) -> str:
    """The table: titles of columns, and their cells."""
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for method in run.methods:
        lines.append(f"| {' | '.join([method, *(cell(run, method) for cell in columns.values())])} |")
    return "\n".join(lines)


def mean(column: str, spec: str) -> Cell:
    """The mean over seeds of the last value of a column; a dash if it has none."""

    def cell(run: Run, method: str) -> str:
        values = _values(run, method, column)
        return f"{statistics.mean(values):{spec}}" if values else "–"

    return cell


def largest(column: str, spec: str) -> Cell:
    """The largest over seeds, likewise."""

    def cell(run: Run, method: str) -> str:
        values = _values(run, method, column)
        return f"{max(values):{spec}}" if values else "–"

    return cell


def minus(other: str, column: str, spec: str) -> Cell:
    """The difference to another contender, paired by seed, with its 95 % interval."""

    def cell(run: Run, method: str) -> str:
        if method == other:
            return "–"
        difference, half, _ = paired(run, method, other, column)
        return f"{difference:+{spec}} ± {half:{spec}}"

    return cell


def _values(run: Run, method: str, column: str) -> list[float]:
    return [trial.records[column][-1] for trial in run.of(method) if trial.status and column in trial.records]


def print_table(columns: Mapping[str, Cell]) -> None:
    """Print the table of the file that the command line names."""
    sys.stdout.write(table(load(Path(sys.argv[1])), columns) + "\n")
