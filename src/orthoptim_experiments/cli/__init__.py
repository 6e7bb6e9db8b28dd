"""The command `orthoptim`."""

import os
import signal
import sys

COMMANDS = {
    "run": "Run an experiment of the paper, or of your own.",
    "report": "Write a page on results: curves, tables, and what the paper says.",
    "figure": "Draw a figure of the paper from results.",
    "cost": "What a step of each method costs at the paper's sizes.",
    "demo": "Two minutes that show what the library does.",
    "experiments": "List the experiments; of one, what it is.",
    "methods": "List the methods, with their options.",
    "data": "Fetch, check and find data sets.",
    "bench": "Step time and memory of POGO against its peers.",
    "scale": "What a sharded step costs each of up to thousands of ranks.",
}
"""What there is, and a line on each: the help of the command needs nothing else, and no torch."""

RESTARTS = 10
"""How often lost processes are replaced before the run is given up."""

EXIT_STATUS = "ORTHOPTIM_EXIT_STATUS"
"""The environment variable with the path of the file in which the first process leaves its exit status."""


def overview() -> str:
    """The help of the command itself."""
    lines = [f"  {name:<12} {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: orthoptim [OPTIONS] COMMAND [ARGS]...",
            "",
            "  Optimize orthogonal and unitary matrices at scale.",
            "",
            "Options:",
            "  --install-completion  Install completion for the current shell.",
            "  --show-completion     Show completion for the current shell.",
            "  --help                Show this message and exit.",
            "",
            "Commands:",
            *lines,
        ]
    )


def main() -> None:
    """Run the command; name the extra to install if a package that it needs is missing."""
    if sys.argv[1:] in ([], ["--help"]) and not any("_COMPLETE" in name for name in os.environ):
        print(overview())
        raise SystemExit(0 if sys.argv[1:] else 2)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # one of several processes: it ends without a word until it handles signals
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from orthoptim_experiments.cli.commands import app

        if EXIT_STATUS in os.environ:
            from orthoptim_experiments.cli import torchrun

            torchrun.run_as_worker(app)
        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("orthoptim", "orthoptim_experiments"):
            raise
        print(f"orthoptim: {package} is missing; run: pip install 'orthoptim[experiments]'", file=sys.stderr)
        raise SystemExit(2) from None
