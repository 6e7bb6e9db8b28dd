"""The tables that are printed when a run has ended: results by method, and verdicts on claims.

They show the numbers of the page: see :mod:`orthoptim_experiments.harness.summary`.
"""

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from orthoptim_experiments.harness.claims import Claim, Verdict, words
from orthoptim_experiments.harness.numbers import figure
from orthoptim_experiments.harness.panels import Target, label
from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.harness.statistics import Arrival, status_words
from orthoptim_experiments.harness.summary import Summary

_SHORT = {"projected_gap": "gap", "abs_log_z": "|log Z|", "test_bpd": "test bpd"}
_SHOWN = ("projected_gap", "accuracy", "bpd", "test_bpd", "abs_log_z", "distance")
_STYLES = {"confirmed": "green", "holds here": "green", "refuted": "yellow", "does not hold here": "yellow"}


def summary(run: Run, summaries: Sequence[Summary], target: Target | None, clock: str) -> Table:
    """Results by method: statuses, steps and time to the target, and last values."""
    present = [name for name in _SHOWN if any(name in trial.records for trial in run.trials)]
    table = Table(title=f"{run.experiment}, {run.config['scale']}; {label(clock)}", title_justify="left")
    table.add_column("method", overflow="fold")
    table.add_column("trials", overflow="fold")
    for title in [f"steps to {target.value:.0e}", f"time to {target.value:.0e}"] if target else ["time"]:
        table.add_column(title, justify="right")
    for name in present:
        table.add_column(_SHORT.get(name, name), justify="right")
    for each in sorted(summaries, key=lambda each: each.rank):
        row = [each.method, _ends(each.trials)]
        if target:
            row += [_reached(each.steps, ".0f"), _reached(each.arrival, ".3g", " s")]
        else:
            used = each.times[clock]
            row.append(f"{used.mean:.4g} s" if used else "–")
        for name in present:
            value = each.finals.get(name)
            row.append(figure(name, value.mean) if value else "–")
        table.add_row(*row)
    return table


def verdicts(findings: Sequence[tuple[Claim, Verdict]], paper_scale: bool) -> Group:
    """Claims and verdicts, for the claims that could be judged: first the paper's, then ours."""
    scale = "" if paper_scale else " (paper scale not run)"
    parts: list[Text | Table] = []
    for source, title in (("paper", f"What the paper says, and what was measured here{scale}"), ("ours", "Our own")):
        judged = [(c, v) for c, v in findings if c.source == source and v.verdict != "not measured"]
        if judged:
            parts += [Text(title, "bold"), _claims(judged, paper_scale)]
    unmeasured = sum(verdict.verdict == "not measured" for _, verdict in findings)
    if unmeasured:
        parts.append(Text(f"{unmeasured} more claims were not measured: methods or sizes were not run.", "dim"))
    return Group(*parts)


def _claims(findings: Iterable[tuple[Claim, Verdict]], paper_scale: bool) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for claim, found in findings:
        told = words(found, paper_scale)
        table.add_row(Text(told, _STYLES.get(told, "")), Text.assemble(claim.says, "\n", (found.measured, "dim")))
    return table


def _reached(found: Arrival | None, spec: str, unit: str = "") -> str:
    if found is None or found.estimate is None:
        return "–"
    part = "" if found.all else f" ({found.reached} of {found.trials})"
    return f"{found.estimate.mean:{spec}}{unit}{part}"


def _ends(trials: Sequence[Trial]) -> str:
    ends = [status_words(trial) for trial in trials]
    return ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends)) or "none"
