"""The command `orthoptim`."""

import os
import signal
import sys


def main() -> None:
    """Run the command; name the extra to install if a package that it needs is missing."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # one of several processes: it ends without a word until it handles signals
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from orthoptim_experiments.cli import torchrun
        from orthoptim_experiments.cli.commands import app

        if torchrun.is_worker():
            torchrun.run_as_worker(app)
        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("orthoptim", "orthoptim_experiments"):
            raise
        print(f"orthoptim: {package} is missing; run: pip install 'orthoptim[experiments]'", file=sys.stderr)
        raise SystemExit(2) from None
