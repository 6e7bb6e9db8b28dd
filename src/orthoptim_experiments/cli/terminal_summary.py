"""The tables that are printed when a run has ended: results by method, and verdicts on claims."""

import math
import statistics
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from orthoptim_experiments.cli.progress import figure
from orthoptim_experiments.harness.claims import Claim, Verdict, steps_to, time_to
from orthoptim_experiments.harness.panels import label
from orthoptim_experiments.harness.records import Run, Trial


def summary(run: Run, names: Sequence[str]) -> Table:
    """Results by method: statuses, steps and time to the tolerance, and last values."""
    tolerance = run.config.get("tolerance")
    table = Table(title=f"{run.experiment}, {run.config['scale']}", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("trials")
    columns = [
        name for name in ("gap", "accuracy", "bpd", "abs_log_z") if any(name in trial.records for trial in run.trials)
    ]
    columns.append("distance")
    for title in [f"steps to {tolerance:.0e}", f"time to {tolerance:.0e}"] if tolerance else ["time"]:
        table.add_column(title, justify="right")
    for title in columns:
        table.add_column(label(title) if title == "abs_log_z" else title, justify="right")
    order = sorted(names, key=lambda name: (time_to(run, name), names.index(name)) if tolerance else (0, 0))
    for name in order:
        trials = run.of(name)
        row = [name, _ends(trials)]
        if tolerance:
            steps, seconds = steps_to(run, name), time_to(run, name)
            row += [f"{steps:.0f}", f"{seconds:.2f} s"] if math.isfinite(steps) else ["–", "–"]
        else:
            times = [trial.records["time"][-1] for trial in trials if len(trial)]
            row.append(f"{statistics.median(times):.1f} s" if times else "–")
        table.add_row(*row, *(_worst(trials, column) for column in columns))
    return table


def verdicts(findings: Sequence[tuple[Claim, Verdict]]) -> Table:
    """Claims and verdicts, for the claims that could be judged."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for claim, (result, measured) in findings:
        if result != "not measured":
            style = "green" if result == "confirmed" else "yellow"
            table.add_row(Text(result, style), Text.assemble(claim.says, "\n", (measured, "dim")))
    return table


def _ends(trials: Sequence[Trial]) -> str:
    ends = [trial.status or "unfinished" for trial in trials]
    return ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends)) or "none"


def _worst(trials: Sequence[Trial], column: str) -> str:
    last = [trial.records[column][-1] for trial in trials if trial.records.get(column)]
    if not last:
        return "–"
    return figure(column, min(last) if column == "accuracy" else max(last))
