"""Messages to the user on standard error, of one line each."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from orthoptim_experiments.harness.records import ResultsError, Run
from orthoptim_experiments.harness.text import one_line


def tell(line: str) -> None:
    """Print one line on standard error: standard output may be read by a program."""
    print(f"orthoptim: {one_line(line)}", file=sys.stderr)


def tell_defects(run: Run) -> None:
    """Print what was left out of the records of a run."""
    for line in ([run.notice] if run.notice else []) + run.defects:
        tell(line)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors that the user can do something about into one line and exit code 2."""
    try:
        yield
    except (ResultsError, ValueError) as error:
        tell(str(error))
        raise typer.Exit(2) from None
    except BrokenPipeError:  # the reader of the output has gone
        raise
    except OSError as error:
        tell(f"{error.filename or 'standard output'}: {error.strerror}")
        raise typer.Exit(2) from None
