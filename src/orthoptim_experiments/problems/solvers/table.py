"""The tables of the pages on solvers and on ICA: python -m orthoptim_experiments.problems.solvers.table FILE."""

import sys
from pathlib import Path

from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.problems.solvers.claims import table

LEVELS = {"solvers": ("projected_gap", (1e-6, 1e-10)), "ica": ("gradient_norm", (1e-4, 1e-8))}
"""By experiment, the column and the levels that are timed."""

if __name__ == "__main__":
    run = load(Path(sys.argv[1]))
    sys.stdout.write(table(run, *LEVELS[run.experiment]) + "\n")
