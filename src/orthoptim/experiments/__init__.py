"""The paper's experiments, and the harness they share."""
