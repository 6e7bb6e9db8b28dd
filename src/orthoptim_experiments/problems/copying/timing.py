"""What a training step of the recurrent networks costs: python -m orthoptim_experiments.problems.copying.timing FILE.

Forward pass, backward pass and both optimizers, in turns, at several sizes; the figures go to FILE as JSON, and a table
to the terminal, a picture to FILE.png. For those of figures that are there already add ``--show``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from orthoptim_experiments.bench.measure import Timing, measure
from orthoptim_experiments.harness.environment import environment
from orthoptim_experiments.harness.experiment import Config, configuration
from orthoptim_experiments.harness.methods import find
from orthoptim_experiments.problems.copying.experiment import CopyingExperiment

SIZES = ((64, 100), (128, 100), (256, 100), (512, 100), (128, 1000))
"""Units and delays."""


def step_times(config: Config, seconds: float) -> dict[str, Timing]:
    """The seconds and the memory of a training step of every contender that is installed."""
    experiment = CopyingExperiment()
    steps = {}
    for method, options in experiment.methods(config).items():
        if find(method).installed:
            torch.manual_seed(0)
            problem = experiment.problem(config, method, 0)
            problem.begin(find(method).build(problem.parameters(), options))
            steps[method] = problem.advance
    return measure(steps, seconds=seconds)


def figures(seconds: float = 0.5, sizes: tuple[tuple[int, int], ...] = SIZES) -> dict[str, Any]:
    """All figures, with the machine they are of."""
    experiment = CopyingExperiment()
    rows = []
    for units, delay in sizes:
        config = configuration(experiment, "laptop", variant="copying", sizes={"units": units, "delay": delay})
        timings = step_times(config, seconds)
        rows.append(
            {
                "units": units,
                "delay": delay,
                "batch": config["batch"],
                "steps": {method: timing._asdict() for method, timing in timings.items()},
            }
        )
    return {"environment": environment(torch.device("cpu")), "rows": rows}


def table(found: dict[str, Any]) -> str:
    """Milliseconds of a step as Markdown, in brackets the ratio to POGO on the same field, and the extra memory."""
    methods = list(found["rows"][0]["steps"])
    lines = [f"| units, T | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    for row in found["rows"]:
        cells = []
        for method in methods:
            timing, unit = (row["steps"][name] for name in (method, "POGO-complex" if "complex" in method else "POGO"))
            cells.append(
                f"{timing['least'] * 1e3:.1f} ms ({timing['least'] / unit['least']:.2f}), "
                f"{timing['extra_bytes'] / 2**20:.1f} MB"
            )
        lines.append(f"| {row['units']}, {row['delay']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """The time of a step against the units, at the shortest delay, as a ratio to POGO on the same field."""
    from matplotlib.figure import Figure  # half a second of imports

    delay = min(row["delay"] for row in found["rows"])
    rows = [row for row in found["rows"] if row["delay"] == delay]
    picture = Figure(figsize=(6, 3.2), layout="constrained")
    axes = picture.add_subplot()
    for method in rows[0]["steps"]:
        unit = "POGO-complex" if "complex" in method else "POGO"
        ratios = [row["steps"][method]["least"] / row["steps"][unit]["least"] for row in rows]
        style = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}[find(method).dash]
        axes.plot([row["units"] for row in rows], ratios, style, marker="o", color=find(method).colour, label=method)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("units")
    axes.set_ylabel("time of a training step, to POGO")
    axes.grid(alpha=0.3)
    picture.legend(loc="outside right upper", frameon=False, fontsize=8)
    picture.savefig(path, dpi=150)


def main(arguments: list[str]) -> None:
    """See the module."""
    path = Path(arguments[0])
    if "--show" not in arguments:
        torch.set_num_threads(1)
        path.write_text(json.dumps(figures(), indent=1) + "\n")
    found = json.loads(path.read_text())
    draw(found, path.with_suffix(".png"))
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
