"""The page: what the template shows, computed from the runs.

Every string of the data reaches the page through the template, which escapes it, or through JSON that cannot end a
script.
"""

import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import jinja2
import numpy as np
from plotly.offline import get_plotlyjs

from orthoptim_experiments.harness import numbers, statistics
from orthoptim_experiments.harness.claims import words
from orthoptim_experiments.harness.panels import Panel, label
from orthoptim_experiments.harness.records import Trial
from orthoptim_experiments.harness.summary import REFERENCE, Summary, fastest
from orthoptim_experiments.report.section import Section
from orthoptim_experiments.report.styles import GLYPHS, Style, style_of, styles_of

_MARKS = {
    "converged": "✓",
    "completed": "✓",
    "budget": "◦",
    "timeout": "◔",
    "diverged": "✕",
    "failed": "!",
    "unfinished": "…",
}


def render(sections: Sequence[Section], files: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """The page on these runs, as HTML with all it needs inside.

    Args:
        sections: What it shows.
        files: By the anchor of a section, names and addresses of files beside the page.
    """
    shown = [_section(section) | {"files": (files or {}).get(section.anchor, {})} for section in sections]
    data = {section["anchor"]: section.pop("data") for section in shown}
    made = datetime.now(UTC)
    return _environment().get_template("page.html").render(sections=shown, data=data, made=made, plotly=get_plotlyjs())


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("orthoptim_experiments.report", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": numbers.number, "interval": numbers.interval}
    environment.globals |= {
        "figure": numbers.page_figure,
        "band": numbers.page_interval,
        "label": label,
        "reference": REFERENCE,
        "level": statistics.LEVEL,
        "least": statistics.LEAST,
    }
    return environment


def _section(section: Section) -> dict[str, Any]:
    run = section.run
    present = {name for trial in run.trials for name in trial.records}
    columns = [name for name in section.columns if name in present]
    charts = _charts(section.panels, present)
    looks = {method: _look(method, style) for method, style in styles_of(run.methods).items()}
    methods = list(looks.values())
    summaries = section.summaries()
    axes = (section.clock, "step")
    return {
        "anchor": section.anchor,
        "title": section.title,
        "about": section.about,
        "run": run,
        "file": os.fsencode(run.path.name).decode("utf-8", "replace"),  # a file's name need not be Unicode
        "notices": [*([run.notice] if run.notice else []), *run.defects],
        "kind": " · ".join(str(run.config[name]) for name in ("scale", "variant") if name in run.config),
        "charts": [{"label": panel.y_label, "log": panel.log, "bars": panel.x == "method"} for panel in charts],
        "methods": methods,
        "columns": columns,
        "target": section.target,
        "rows": [_row(summary, columns, looks) for summary in summaries],
        "fastest": fastest(summaries),
        "clock": section.clock,
        "paper_scale": section.paper_scale,
        "notes": section.notes,
        "trials": [_trial(trial, columns) for trial in run.trials],
        "troubles": [_trial(trial, columns) for trial in run.trials if trial.status not in statistics.ENDED],
        "clocks": [name for name in ("processor_time", "time") if name in present],
        "config": _flat(run.config),
        "environment": _flat(run.environment),
        "elsewhere": any(trial.environment != run.environment for trial in run.trials),
        "findings": [
            {
                "claim": claim,
                "measured": found.measured,
                "result": found.verdict,
                "words": words(found, section.paper_scale),
            }
            for claim, found in section.findings
        ],
        "held": sum(found.verdict == "holds" and claim.source == "paper" for claim, found in section.findings),
        "judged": sum(
            found.verdict in ("holds", "fails", "undecided") and claim.source == "paper"
            for claim, found in section.findings
        ),
        "attachments": section.attachments,
        "done": sum(trial.status is not None for trial in run.trials),
        "data": {
            "methods": methods,
            "axes": {axis: label(axis) for axis in axes},
            "charts": [_chart(panel, run.trials, axes) for panel in charts],
        },
    }


def _charts(panels: Sequence[Panel], present: set[str]) -> list[Panel]:
    """The first panel of each quantity that was recorded: the page switches the horizontal axis itself."""
    kinds = {(panel.y, panel.x == "method"): panel for panel in reversed(panels) if panel.y in present}
    return [panel for panel in panels if kinds.get((panel.y, panel.x == "method")) is panel]


def _chart(panel: Panel, trials: Sequence[Trial], axes: Sequence[str]) -> dict[str, Any]:
    groups = statistics.by_method(trials)
    chart: dict[str, Any] = {"label": panel.y_label, "log": panel.log, "logX": panel.log_x, "shade": panel.shade}
    if panel.x == "method":
        ends = {
            method: statistics.estimate(
                (statistics.last(trial, panel.y) for trial in statistics.finished(group)), log=panel.log
            )
            for method, group in groups.items()
        }
        chart["bars"] = {method: _plain(end.__dict__) for method, end in ends.items() if end is not None}
        return chart
    chart["axis"] = panel.x
    chart["curves"] = {axis: _means(panel, axis, groups) for axis in axes}
    chart["lost"] = {axis: _lost(panel, axis, trials) for axis in axes}
    return chart


def _means(panel: Panel, axis: str, groups: dict[str, list[Trial]]) -> dict[str, Any]:
    means = {
        method: statistics.average(group, axis, panel.y, log=panel.log, start=panel.start)
        for method, group in groups.items()
    }
    return {method: _plain(mean.__dict__) for method, mean in means.items() if mean is not None}


def _lost(panel: Panel, axis: str, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The trials that count in no mean, each by itself."""
    lost = []
    for trial in trials:
        if trial.status in statistics.LOST and (
            points := statistics.track(trial, axis, panel.y, log=panel.log, start=panel.start)
        ):
            x, y = _plain(points[0]), _plain(np.exp(np.clip(points[1], -230, 230)) if panel.log else points[1])
            lost.append({"method": trial.method, "seed": trial.seed, "status": trial.status, "x": x, "y": y})
    return lost


def _look(method: str, style: Style) -> dict[str, str]:
    return {
        "name": method,
        "label": style.label,
        "colour": style.colour,
        "dark": style.colour_on_dark,
        "dash": style.dash,
        "marker": style.marker,
        "glyph": GLYPHS[style.marker],
    }


def _row(summary: Summary, columns: Sequence[str], looks: Mapping[str, dict[str, str]]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for trial in summary.trials:
        counts[_status(trial)] = counts.get(_status(trial), 0) + 1
    return {
        "look": looks[summary.method],
        "counts": counts,
        "seeds": [
            {"seed": trial.seed, "status": _status(trial), "mark": _MARKS[_status(trial)]} for trial in summary.trials
        ],
        "finals": [(name, summary.finals.get(name)) for name in columns],
        "times": summary.times,
        "arrival": summary.arrival,
        "speed_up": summary.speed_up,
        "lost": summary.lost,
    }


def _trial(trial: Trial, columns: Sequence[str]) -> dict[str, Any]:
    lost = trial.status in statistics.LOST
    return {
        "label": style_of(trial.method).label,
        "seed": trial.seed,
        "status": _status(trial),
        "mark": _MARKS[_status(trial)],
        "message": trial.message,
        "steps": int(statistics.last(trial, "step")) if len(trial) else 0,
        "times": {name: statistics.last(trial, name) for name in ("processor_time", "time")},
        "finals": ["–" if lost else numbers.page_figure(name, statistics.last(trial, name)) for name in columns],
        "options": ", ".join(f"{name} {value}" for name, value in _flat(trial.options)),
    }


def _status(trial: Trial) -> str:
    return "completed" if statistics.status_words(trial) == "completed" else trial.status or "unfinished"


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values in words, those of nested tables after their own names."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            pairs += _flat(value, f"{prefix}{name} ")
        else:
            words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            pairs.append((prefix + str(name).replace("_", " "), words))
    return pairs


def _plain(value: Any) -> Any:
    """For JSON, in six digits: what a screen can show. Numbers that are not finite are null."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
