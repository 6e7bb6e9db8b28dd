"""From run files to the page and its figures."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from orthoptim.atomic import write
from orthoptim_experiments.harness.claims import words
from orthoptim_experiments.harness.export import csv_text
from orthoptim_experiments.harness.filenames import refuse_link
from orthoptim_experiments.harness.panels import Panel
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import ResultsError, Run, Trial
from orthoptim_experiments.report.figures import save_figure
from orthoptim_experiments.report.page import render
from orthoptim_experiments.report.section import Section, distinct


def find_runs(paths: Sequence[Path], tell: Callable[[str], None]) -> list[Run]:
    """The runs in files and folders, each once, in the order of experiments and ids.

    Args:
        paths: Of files and folders.
        tell: Called with one line about each file that is no run, if there are others.

    Raises:
        ResultsError: If a path is not there, or there is no run at all.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise ResultsError(f"there are no results at {path}; `orthoptim run` makes some")
        candidates = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        files |= {Path(os.path.realpath(file)): None for file in candidates}  # resolve() raises for circular links
    if not files:
        raise ResultsError(f"there are no results in {', '.join(map(str, paths))}; `orthoptim run` makes some")
    runs, refusals = [], []
    for file in files:
        try:
            runs.append(load(file))
        except ResultsError as error:
            refusals.append(str(error))
    if not runs and len(refusals) == 1:
        raise ResultsError(refusals[0])
    for refusal in refusals:
        tell(refusal)
    if not runs:
        raise ResultsError(f"none of the {len(files)} files in {', '.join(map(str, paths))} holds a run")
    return sorted(runs, key=lambda run: (run.experiment, run.id, run.path))


def write_report(sections: Sequence[Section], out: Path, figures: Path | None = None) -> list[Path]:
    """Writes the page, and figures and records as CSV if a folder for them is given.

    Returns:
        The paths of the files, the page first.

    Raises:
        OSError: If a file cannot be written.
    """
    sections = distinct(sections)
    written = [out]
    if figures is None:
        write(out, render(sections).encode())
        return written
    refuse_link(figures)
    folder = quote(os.path.relpath(figures, out.parent))
    links = {section.anchor: _links(section, folder) for section in sections}
    write(out, render(sections, links).encode())
    for section in sections:
        table = figures / f"{section.anchor}.csv"
        written += [*write_figures(section, figures), table]
        write(table, csv_text(section.run).encode())
    return written


def _links(section: Section, folder: str) -> dict[str, str]:
    """The files beside the page, by what they are."""
    endings = {"figure (PNG)": "png", "figure (PDF)": "pdf"} if _panels(section) else {}
    stem = quote(section.anchor)
    return {name: f"{folder}/{stem}.{ending}" for name, ending in {**endings, "every record (CSV)": "csv"}.items()}


def write_figures(section: Section, folder: Path) -> list[Path]:
    """Writes the figure of one run as PNG and PDF, if there is anything to draw.

    Raises:
        OSError: If a file cannot be written.
    """
    panels = _panels(section)
    return save_figure(refuse_link(folder) / section.anchor, panels) if panels else []


def _panels(section: Section) -> list[tuple[Sequence[Trial], Panel]]:
    """The panels whose quantities were recorded."""
    trials = section.run.trials
    present = {name for trial in trials for name in trial.records}
    return [(trials, panel) for panel in section.panels if panel.y in present]


def claims_table(sections: Sequence[Section]) -> str:
    """A table in Markdown: each claim, its words in the paper, what was measured in these runs, and the verdict."""
    lines = ["| experiment | claim | the paper | here | verdict |", "|---|---|---|---|---|"]
    for section in sections:
        where = f"{section.title}, {'paper size' if section.paper_scale else section.run.config.get('scale', '')}"
        for claim, found in section.findings:
            said = f"“{claim.quote}” ({claim.place})" if claim.quote else claim.place or "ours"
            cells = (where, claim.says, said, found.measured, words(found, section.paper_scale))
            lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
