"""The tables of the guide on recurrent networks: python -m orthoptim_experiments.problems.copying.table FILE."""

from orthoptim_experiments.problems.copying.claims import TARGET
from orthoptim_experiments.problems.markdown import largest, mean, minus, print_table, reaching

COLUMNS = {
    "loss": mean("loss", ".4f"),
    "of that without memory": mean("excess", ".2f"),
    "− exp-Adam, paired": minus("exp-Adam", "excess", 2),
    "accuracy": mean("accuracy", ".1%"),
    "steps to half": reaching(TARGET, "step", ".0f"),
    "seconds to half": reaching(TARGET, "clock", ".2f"),
    "seconds in all": mean("processor_time", ".2f"),
    "largest distance": largest("distance", ".0e"),
}

if __name__ == "__main__":
    print_table(COLUMNS)
