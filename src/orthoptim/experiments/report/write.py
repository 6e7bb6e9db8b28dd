"""From run files to the page and its figures."""

from collections.abc import Sequence
from pathlib import Path

from orthoptim.experiments.atomic import write
from orthoptim.experiments.figures import save_figure
from orthoptim.experiments.report.page import render
from orthoptim.experiments.report.section import Section
from orthoptim.experiments.results import ResultsError, Run, load


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in files and folders, each once, in the order of experiments and ids.

    Raises:
        ResultsError: If a path is not there, a file is no run or corrupt, or there is no run at all.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise ResultsError(f"there are no results at {path}; `orthoptim run` makes some")
        files |= {file.resolve(): None for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])}
    if not files:
        raise ResultsError(f"there are no results in {', '.join(map(str, paths))}; `orthoptim run` makes some")
    return sorted((load(file) for file in files), key=lambda run: (run.experiment, run.id))


def write_report(sections: Sequence[Section], out: Path, figures: Path | None = None) -> list[Path]:
    """Writes the page, and the figures if a folder for them is given.

    Returns:
        The paths of the files, the page first.

    Raises:
        OSError: If a file cannot be written.
    """
    write(out, render(sections).encode())
    written = [out]
    if figures is not None:
        for section in sections:
            written += write_figures(section, figures)
    return written


def write_figures(section: Section, folder: Path) -> list[Path]:
    """Writes the figure of one run as PNG and PDF, if there is anything to draw.

    Raises:
        OSError: If a file cannot be written.
    """
    trials = section.run.trials
    present = {name for trial in trials for name in trial.records}
    panels = [(trials, panel) for panel in section.panels if panel.y in present]
    return save_figure(folder / section.anchor, panels) if panels else []
