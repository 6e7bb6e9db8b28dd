"""``orthoptim data``: fetch, check and find the data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from orthoptim_experiments.cli.messages import one_line_errors, tell

if TYPE_CHECKING:
    from orthoptim_experiments.problems.datasets.sources import Source

app = typer.Typer(
    help="Fetch, check and find the data sets of the experiments.", no_args_is_help=True, rich_markup_mode=None
)

Names = Annotated[list[str] | None, typer.Argument(help="cifar10, mnist; all of them by default.")]
Directory = Annotated[
    Path | None, typer.Option("--data-dir", help="Data directory; by default $ORTHOPTIM_DATA, else the user's cache.")
]


@app.command()
def fetch(
    names: Names = None,
    data_dir: Directory = None,
    mirror: Annotated[str | None, typer.Option(help="Address to fetch the archives from; one data set only.")] = None,
) -> None:
    """Download what is missing or damaged, and verify it."""
    from orthoptim_experiments.cli.arguments import UsageError
    from orthoptim_experiments.problems.datasets.files import data_directory
    from orthoptim_experiments.problems.datasets.files import fetch as fetch_source

    with one_line_errors():
        sources = _sources(names)
        if mirror is not None and len(sources) != 1:
            raise UsageError("--mirror goes with one data set: name it")
        for source in sources:
            with _Bar(source.title) as bar:
                fetched = fetch_source(source, data_directory(data_dir), mirror=mirror, progress=bar)
            what = "fetched into" if fetched else "is complete in"
            print(f"{source.title} {what} {data_directory(data_dir) / source.folder}")


@app.command()
def check(names: Names = None, data_dir: Directory = None) -> None:
    """Verify every file against its published checksum."""
    from orthoptim_experiments.problems.datasets.files import DataError, data_directory, find, read

    damaged = 0
    with one_line_errors():
        sources = _sources(names)
    for source in sources:
        for file in source.files:
            try:
                read(source, file, data_directory(data_dir))
            except DataError as error:
                damaged += 1
                tell(str(error))
            else:
                print(f"{find(source, file, data_directory(data_dir))}: as published")
    if damaged:
        raise typer.Exit(2)


@app.command()
def where(data_dir: Directory = None) -> None:
    """Print the data directory."""
    from orthoptim_experiments.problems.datasets.files import data_directory

    print(data_directory(data_dir))


def _sources(names: list[str] | None) -> "list[Source]":
    from orthoptim_experiments.cli.arguments import choice
    from orthoptim_experiments.problems.datasets.sources import SOURCES

    return [SOURCES[choice("data set", name, list(SOURCES))] for name in names or SOURCES]


class _Bar:
    """A rich progress bar with the methods that pooch calls; on stderr, and only on a terminal."""

    def __init__(self, title: str) -> None:
        columns = (TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task(title, total=None)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: float) -> None:
        self._progress.update(self._task, total=size)

    def update(self, size: float) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """The bar serves every archive of a data set."""
