"""Figures as in the paper, in PNG and PDF: small multiples of means with confidence bands, one look for each method."""

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from orthoptim.atomic import write
from orthoptim_experiments.harness.panels import Panel
from orthoptim_experiments.harness.records import Trial
from orthoptim_experiments.harness.statistics import (
    LOST,
    Curve,
    Floats,
    average,
    by_method,
    estimate,
    finished,
    last,
    track,
)
from orthoptim_experiments.report.styles import DASHES, MATPLOTLIB_MARKERS, Style, styles_of

WIDTH = 6.75
"""Inches: the text of a two-column journal."""

_LOOK: dict[Any, Any] = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 8,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "ytick.minor.size": 0,
    "xtick.minor.size": 0,
    "lines.linewidth": 1.1,
    "lines.solid_capstyle": "round",
    "pdf.fonttype": 42,  # journals refuse type 3 fonts
    "savefig.dpi": 300,
}
_LONGEST = 40
"""Characters of a label."""

_SHADE = "#009E73"


def save_figure(stem: Path, panels: Sequence[tuple[Sequence[Trial], Panel]]) -> list[Path]:
    """Draws a figure and writes it as PNG and PDF.

    Args:
        stem: Path of the files without their endings, e.g. figures/pca.
        panels: The panels from left to right, each with the trials that it shows.

    Returns:
        The paths of the files, PNG first.

    Raises:
        OSError: If a file cannot be written.
    """
    paths = []
    with matplotlib.rc_context(_LOOK), warnings.catch_warnings():
        # a name in letters that the font lacks, or that leaves no room, makes an ugly figure, not a wrong one
        warnings.filterwarnings("ignore", "Glyph .* missing from|constrained_layout not applied", UserWarning)
        figure = draw(panels)
        for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):  # same data, same bytes
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, metadata=metadata)
            path = stem.with_name(f"{stem.name}.{ending}")
            write(path, buffer.getvalue())
            paths.append(path)
    return paths


def draw(panels: Sequence[tuple[Sequence[Trial], Panel]]) -> Figure:
    """The figure: panels in rows of at most four, one legend above all of them."""
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    width = WIDTH if columns > 1 else WIDTH / 2
    methods = list(dict.fromkeys(trial.method for trials, panel in panels if panel.x != "method" for trial in trials))
    styles = styles_of(trial.method for trials, _ in panels for trial in trials)
    legend = _legend_columns([styles[method] for method in methods], width)
    height = 0.18 + 0.14 * -(-len(methods) // legend) + rows * (1.55 if columns > 3 else 1.75)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for (trials, panel), ax in zip(panels, axes, strict=False):
        (_bars if panel.x == "method" else _points if panel.points else _curves)(ax, trials, panel, styles)
        ax.set_title(panel.title)
        ax.set_xlabel(panel.x_label)
        ax.set_ylabel(_text(panel.y_label))
    for ax in axes[len(panels) :]:
        ax.remove()
    if methods:
        figure.legend(
            handles=[
                Line2D([], [], label=_text(styles[name].label), **_line(styles[name]), markersize=3.5)
                for name in methods
            ],
            loc="outside upper center",
            ncols=legend,
            frameon=False,
            handlelength=2.8,
            columnspacing=1.4,
            handletextpad=0.5,
        )
    return figure


def _legend_columns(styles: Sequence[Style], width: float) -> int:
    """As many as fit side by side, estimated by the length of the labels."""
    widths = [0.56 + 0.058 * len(_text(style.label)) for style in styles]
    return max(1, len(styles) if sum(widths) <= width else int(width / max(widths)))


def _curves(ax: Axes, trials: Sequence[Trial], panel: Panel, styles: Mapping[str, Style]) -> None:
    if panel.log:
        ax.set_yscale("log")
    if panel.log_x:
        ax.set_xscale("log")
    groups = by_method(trials)
    curves = {
        method: average(group, panel.x, panel.y, log=panel.log, start=panel.start) for method, group in groups.items()
    }
    drawn = {method: curve for method, curve in curves.items() if curve is not None}
    _limit(ax, panel, list(drawn.values()))
    right = max((float(curve.x[-1]) for curve in drawn.values()), default=math.inf)
    for place, (method, curve) in enumerate(drawn.items()):
        line = _line(styles[method])
        # Markers at distances of their own along each line: where lines run together, the markers do not.
        every = ((place + 0.5) / len(drawn) * 0.25, 0.25)
        front = 3 if method == "POGO" else 2
        mean, low, high = (_drawable(values, panel.log) for values in (curve.mean, curve.low, curve.high))
        ax.plot(curve.x, mean, markevery=every, markersize=3, zorder=front, **line)
        end = {"marker": line["marker"], "color": line["color"], "markeredgewidth": 0}
        ax.plot(curve.x[-1:], mean[-1:], markersize=3.6, zorder=front, **end)
        if curve.banded:
            ax.fill_between(curve.x, low, high, color=line["color"], alpha=0.12, linewidth=0)
    for trial in trials:
        if trial.status in LOST:
            _lost(ax, trial, panel, styles[trial.method].colour, right)
    ax.margins(x=0.02)
    if panel.inset and panel.inset in drawn:
        _inset(ax, drawn[panel.inset], styles[panel.inset])
    if panel.log:
        ax.yaxis.set_major_locator(LogLocator(numticks=6))
        ax.yaxis.set_minor_formatter(NullFormatter())
    if not panel.log_x:
        ax.xaxis.set_major_locator(MaxNLocator(4))


def _limit(ax: Axes, panel: Panel, curves: Sequence[Curve]) -> None:
    """Makes the axis span means and shade: a wide band, or a trial that diverged, would leave no room for them."""
    values = np.concatenate([*(curve.mean for curve in curves), [] if panel.shade is None else [panel.shade]])
    values = values[(values > 0) | (not panel.log)]  # nan is neither
    values = _drawable(values[~np.isnan(values)], panel.log)
    if not len(values):
        return
    values = np.log10(values) if panel.log else values
    low, high = float(values.min()), float(values.max())
    margin = 0.07 * (high - low) or max(0.5, 1e-6 * abs(high))
    bottom, top = low - margin, high + margin
    if panel.log:
        bottom, top = 10**bottom, 10**top
    ax.set_ylim(bottom, top)
    if panel.shade is not None:
        ax.axhspan(bottom, panel.shade, color=_SHADE, alpha=0.09, linewidth=0, zorder=0)


def _lost(ax: Axes, trial: Trial, panel: Panel, colour: str, right: float) -> None:
    """A thin line that ends in a cross: where the trial does, or where it leaves the panel."""
    points = track(trial, panel.x, panel.y, log=panel.log, start=panel.start)
    if points is None:
        return
    x, y = points[0], np.exp(np.clip(points[1], -230, 230)) if panel.log else points[1]
    bottom, top = ax.get_ylim()
    outside = np.flatnonzero((y < bottom) | (y > top) | (x > right))
    count = outside[0] + 1 if len(outside) else len(x)
    x, y = np.minimum(x[:count], right), np.clip(_drawable(y[:count], panel.log), bottom, top)
    ax.plot(x, y, color=colour, linewidth=0.5)
    ax.plot(x[-1:], y[-1:], "x", color=colour, markersize=4.5, markeredgewidth=1.1, zorder=4, clip_on=False)


def _inset(ax: Axes, curve: Curve, style: Style) -> None:
    """One method by itself on a linear axis: what a log axis hides of a slow decline."""
    small = ax.inset_axes((0.5, 0.52, 0.46, 0.36))
    small.plot(curve.x, curve.mean, color=style.colour, linewidth=0.9)
    small.set_title(style.label, fontsize=6, pad=2)
    small.tick_params(labelsize=5)
    small.xaxis.set_major_locator(MaxNLocator(2))
    small.yaxis.set_major_locator(MaxNLocator(3))


def _points(ax: Axes, trials: Sequence[Trial], panel: Panel, styles: Mapping[str, Style]) -> None:
    """One point for each method: its last values of both columns, with their intervals."""
    if panel.log_x:
        ax.set_xscale("log")
    for method, group in by_method(trials).items():
        sound = finished(group)
        across = estimate((last(trial, panel.x) for trial in sound), log=True)
        up = estimate((last(trial, panel.y) for trial in sound), log=panel.log)
        if across is None or up is None or across.mean <= 0:
            continue
        line = _line(styles[method])
        xerr, yerr = (
            [[value.mean - value.low], [value.high - value.mean]] if np.isfinite(value.low) else None
            for value in (across, up)
        )
        look = {"color": line["color"], "marker": line["marker"], "markersize": 5, "markeredgewidth": 0}
        ax.errorbar(across.mean, up.mean, yerr, xerr, **look)
    ax.margins(0.15)


def _bars(ax: Axes, trials: Sequence[Trial], panel: Panel, styles: Mapping[str, Style]) -> None:
    if panel.log:
        ax.set_yscale("log")
    ax.grid(False, axis="x")
    groups = by_method(trials)
    for place, (method, group) in enumerate(groups.items()):
        value = estimate((last(trial, panel.y) for trial in finished(group)), log=panel.log)
        if value is None or (panel.log and value.mean <= 0):
            continue
        mean, low, high = _drawable(np.array([value.mean, value.low, value.high]), panel.log)
        ax.bar(place, mean, width=0.66, color=styles[method].colour)
        if np.isfinite(value.low):
            reach = [[max(mean - low, 0.0)], [max(high - mean, 0.0)]]
            ax.errorbar(place, mean, yerr=reach, color="#222222", capsize=2, linewidth=0.8)
    ax.set_xticks(
        range(len(groups)),
        [_text(styles[method].label) for method in groups],
        rotation=40,
        ha="right",
        rotation_mode="anchor",
    )


def _drawable(values: Floats, log: bool) -> Floats:
    """The values, so far from the ends of the doubles that an axis with its margins and ticks can span them."""
    drawable: Floats = np.clip(values, 1e-100 if log else -1e100, 1e100)
    return drawable


def _text(name: str) -> str:
    """A name as a label: cut short, and none of it taken for matplotlib's markup of formulas or of hidden labels."""
    short = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def _line(style: Style) -> dict[str, Any]:
    dash = DASHES[style.dash]
    return {
        "color": style.colour,
        "linestyle": (0, dash) if dash else "-",
        "marker": MATPLOTLIB_MARKERS[style.marker],
        "markeredgewidth": 0,
    }
