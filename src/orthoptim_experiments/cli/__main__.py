"""`python -m orthoptim_experiments.cli` is the command `orthoptim`."""

from orthoptim_experiments.cli import main

main()
