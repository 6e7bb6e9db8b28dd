"""Records for other programs: a data frame, CSV, a LaTeX table."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.methods import UnknownMethodError, find
from orthoptim_experiments.harness.panels import LOG, Target, label
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import Estimate
from orthoptim_experiments.harness.summary import summarise

_SHOWN = ("projected_gap", "accuracy", "bpd", "test_bpd", "distance")


def rows(run: Run) -> Iterator[dict[str, Any]]:
    """One row for each record: experiment, method, seed, how the trial ended, and what was measured."""
    for trial in run.trials:
        for at in range(len(trial)):
            measured = {name: values[at] for name, values in trial.records.items()}
            yield {
                "experiment": run.experiment,
                "method": trial.method,
                "seed": trial.seed,
                "status": trial.status or "unfinished",
                **measured,
            }


def csv_text(run: Run) -> str:
    """The rows as CSV; what was not measured is empty."""
    table = list(rows(run))
    names = list(dict.fromkeys(name for row in table for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value != value else value for name, value in row.items()} for row in table)
    return buffer.getvalue()


def dataframe(run: Run) -> Any:
    """The rows as a pandas data frame."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ModuleNotFoundError("to_dataframe() needs pandas: pip install pandas; to_csv() does not") from None
    return pd.DataFrame(list(rows(run)))


def latex(run: Run, columns: Sequence[str] | None = None) -> str:
    """A table with booktabs: last values and times by method, mean ± half of the 90 % interval.

    Quantities that are drawn on log axes, and times, have geometric means and the ends of their intervals instead.
    """
    target = Target("projected_gap", run.config["tolerance"]) if "tolerance" in run.config else None
    present = [name for name in columns or _SHOWN if any(name in trial.records for trial in run.trials)]
    clock = clock_of(run.config)
    titles = [
        "method",
        *map(label, present),
        label(clock),
        *([f"{label(clock)} to {target.value:g}"] if target else []),
    ]
    lines = [r"\begin{tabular}{l" + "r" * (len(titles) - 1) + "}", r"\toprule", _row(titles), r"\midrule"]
    for each in summarise(run.trials, present, target, clock):
        cells = [_cell(each.finals[name], log=name in LOG) for name in present]
        cells.append(_cell(each.times[clock], log=True))
        if target and each.arrival is not None:
            cells.append(_cell(each.arrival.estimate if each.arrival.all else None, log=True))
        if each.lost and all(cell == "--" for cell in cells):
            cells[0] = _escape(each.lost)
        lines.append(_row([_escape(_label(each.method)), *cells]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(value: Estimate | None, *, log: bool) -> str:
    if value is None:
        return "--"
    if not np.isfinite(value.low):
        return f"${_number(value.mean)}$"
    if log:
        return f"${_number(value.mean)}$ [${_number(value.low)}$, ${_number(value.high)}$]"
    return rf"${_number(value.mean)} \pm {_number(value.high - value.mean)}$"


def _number(value: float) -> str:
    digits, _, power = f"{value:.3g}".partition("e")
    return rf"{digits} \cdot 10^{{{int(power)}}}" if power else digits


def _label(method: str) -> str:
    try:
        return find(method).label
    except UnknownMethodError:
        return method


def _escape(text: str) -> str:
    for char in "\\{}$&#^_~%":
        text = text.replace(char, r"\textbackslash{}" if char == "\\" else f"\\{char}" if char not in "^~" else " ")
    return text
