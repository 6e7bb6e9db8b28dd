"""The table of the guide on rotations: python -m orthoptim_experiments.problems.rotations.table FILE."""

import statistics
import sys
from pathlib import Path

from orthoptim_experiments.harness.claims import difference, difference_words, ended
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import last


def table(run: Run) -> str:
    """One line for each contender, as Markdown: means over seeds, and differences paired by seed."""
    lines = [
        "| | perplexity | − hadamard, paired | − SGDG, paired | error of logits | largest distance | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in run.methods:
        columns = {name: [last(trial, name) for trial in ended(run, method)] for name in _COLUMNS}
        cells = [method, f"{statistics.mean(columns['perplexity']):.3f}"]
        cells += [_difference(run, method, other) for other in ("hadamard", "SGDG")]
        cells += [
            f"{statistics.mean(columns['quantization_error']):.2%}",
            f"{max(columns['max_distance']):.0e}",
            f"{statistics.mean(columns['processor_time']):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_COLUMNS = ("perplexity", "quantization_error", "max_distance", "processor_time")


def _difference(run: Run, method: str, other: str) -> str:
    if method == other:
        return "–"
    return difference_words(difference(run, method, other, "perplexity"), 3).partition(" (")[0]


if __name__ == "__main__":
    sys.stdout.write(table(load(Path(sys.argv[1]))) + "\n")
