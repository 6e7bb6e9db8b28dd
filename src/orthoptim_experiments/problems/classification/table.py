"""StiefelMuon against POGO on images: python -m orthoptim_experiments.problems.classification.table FILE."""

import sys
from pathlib import Path

from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.problems.markdown import largest, mean, minus, table

if __name__ == "__main__":
    run = load(Path(sys.argv[1]))
    other = next(method for method in run.methods if method.startswith("POGO"))
    columns = {
        "test accuracy": mean("accuracy", ".1%"),
        f"− {other}, paired": minus(other, "accuracy", 3),
        "test loss": mean("loss", ".3f"),
        f"− {other}, paired ": minus(other, "loss", 3),
        "largest distance": largest("max_distance", ".0e"),
        "seconds": mean("processor_time", ".1f"),
        "of which in the optimizer": mean("optimizer_time", ".1f"),
    }
    sys.stdout.write(table(run, columns) + "\n")
