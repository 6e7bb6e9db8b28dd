"""The tables of the guide on recurrent networks: python -m orthoptim_experiments.problems.copying.table FILE."""

from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import arrival
from orthoptim_experiments.problems.copying.claims import TARGET
from orthoptim_experiments.problems.markdown import Cell, largest, mean, print_table


def to_half(axis: str, spec: str) -> Cell:
    """The mean over seeds of the steps, or of the seconds, to half of the loss without memory; a dash unless all do."""

    def cell(run: Run, method: str) -> str:
        reached = arrival([trial for trial in run.of(method) if trial.status], TARGET, axis)
        return f"{reached.estimate.mean:{spec}}" if reached.all and reached.estimate is not None else "–"

    return cell


COLUMNS = {
    "loss": mean("loss", ".4f"),
    "of that without memory": mean("excess", ".2f"),
    "accuracy": mean("accuracy", ".1%"),
    "steps to half": to_half("step", ".0f"),
    "seconds to half": to_half("processor_time", ".2f"),
    "seconds in all": mean("processor_time", ".2f"),
    "largest distance": largest("distance", ".0e"),
}

if __name__ == "__main__":
    print_table(COLUMNS)
