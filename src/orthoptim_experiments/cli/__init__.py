"""The command `orthoptim`."""

import sys


def main() -> None:
    """Run the command; name the extra to install if a package that it needs is missing."""
    try:
        from orthoptim_experiments.cli.commands import app

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("orthoptim", "orthoptim_experiments"):
            raise
        print(f"orthoptim: {package} is missing; run: pip install 'orthoptim[experiments]'", file=sys.stderr)
        raise SystemExit(2) from None
