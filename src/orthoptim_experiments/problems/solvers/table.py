"""The tables of the pages on solvers and on ICA: python -m orthoptim_experiments.problems.solvers.table FILE."""

import sys
from pathlib import Path

from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.problems.markdown import Cell, reaching, table

LEVELS = {"solvers": ("projected_gap", (1e-6, 1e-10)), "ica": ("gradient_norm", (1e-4, 1e-8))}
"""By experiment, the column and the levels that are timed."""


def columns(experiment: str) -> dict[str, Cell]:
    """Iterations, evaluations and seconds to each level."""
    name, levels = LEVELS[experiment]
    return {
        f"{what} to {level:.0e}": reaching(Target(name, level), axis, spec)
        for level in levels
        for what, axis, spec in (
            ("iterations", "step", ".0f"),
            ("evaluations", "evaluations", ".0f"),
            ("seconds", "clock", ".2f"),
        )
    }


if __name__ == "__main__":
    run = load(Path(sys.argv[1]))
    sys.stdout.write(table(run, columns(run.experiment)) + "\n")
