"""The table of the guide on rotations: python -m orthoptim_experiments.problems.rotations.table FILE."""

from orthoptim_experiments.problems.markdown import largest, mean, minus, print_table

COLUMNS = {
    "perplexity": mean("perplexity", ".3f"),
    "− hadamard, paired": minus("hadamard", "perplexity", 3),
    "− SGDG, paired": minus("SGDG", "perplexity", 3),
    "error of logits": mean("quantization_error", ".2%"),
    "largest distance": largest("max_distance", ".0e"),
    "seconds": mean("processor_time", ".1f"),
}

if __name__ == "__main__":
    print_table(COLUMNS)
