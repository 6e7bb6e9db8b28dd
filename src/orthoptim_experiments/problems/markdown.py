"""Tables of the guides, as Markdown: a line for each contender of a run."""

import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from orthoptim_experiments.harness.claims import column, difference, difference_words
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import arrival

Cell = Callable[[Run, str], str]
"""What a table says of a run's method."""


def table(run: Run, columns: Mapping[str, Cell]) -> str:
    """The table: titles of columns, and their cells."""
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for method in run.methods:
        lines.append(f"| {' | '.join([method, *(cell(run, method) for cell in columns.values())])} |")
    return "\n".join(lines)


def mean(name: str, spec: str) -> Cell:
    """The mean over seeds of the last value of a column; a dash if it has none."""
    return lambda run, method: _cell(statistics.fmean, run, method, name, spec)


def largest(name: str, spec: str) -> Cell:
    """The largest over seeds, likewise."""
    return lambda run, method: _cell(max, run, method, name, spec)


def minus(other: str, name: str, digits: int) -> Cell:
    """The difference to another contender, paired by seed, with its interval.

    Its options may have been set: ``"SGDG"`` is also ``"SGDG:lr=5"``.
    """

    def cell(run: Run, method: str) -> str:
        reference = next((each for each in run.methods if each.partition(":")[0] == other), other)
        if method == reference:
            return "–"
        return difference_words(difference(run, method, reference, name), digits).partition(" (")[0]

    return cell


def reaching(target: Target, axis: str, spec: str) -> Cell:
    """The geometric mean over seeds of what it takes to reach a target; a dash unless all trials get there.

    The axis is ``"step"``, another column that ascends, or the seconds of the ``"clock"`` that counts.
    """

    def cell(run: Run, method: str) -> str:
        along = clock_of(run.config) if axis == "clock" else axis
        reached = arrival([trial for trial in run.of(method) if trial.status], target, along)
        return f"{reached.estimate.mean:{spec}}" if reached.all and reached.estimate is not None else "–"

    return cell


def _cell(combine: Callable[[list[float]], float], run: Run, method: str, name: str, spec: str) -> str:
    values = [each[-1] for each in column(run, method, name) if each]
    return f"{combine(values):{spec}}" if values else "–"


def print_table(columns: Mapping[str, Cell]) -> None:
    """Print the table of the file that the command line names."""
    sys.stdout.write(table(load(Path(sys.argv[1])), columns) + "\n")
