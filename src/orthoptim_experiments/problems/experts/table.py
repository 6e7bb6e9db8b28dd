"""The table of the guide on experts: python -m orthoptim_experiments.problems.experts.table FILE."""

from orthoptim_experiments.problems.markdown import largest, mean, minus, print_table

COLUMNS = {
    "perplexity": mean("perplexity", ".2f"),
    "− Adam, paired": minus("Adam", "perplexity", 2),
    "largest distance": largest("max_distance", ".0e"),
    "seconds": mean("processor_time", ".1f"),
    "of which in the optimizer of the experts": mean("optimizer_time", ".1f"),
}

if __name__ == "__main__":
    print_table(COLUMNS)
