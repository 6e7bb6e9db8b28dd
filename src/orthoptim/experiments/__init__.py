"""The paper's experiments, and the harness they share. Importing this registers them."""

from orthoptim.experiments import pca, precision, procrustes

__all__ = ["pca", "precision", "procrustes"]
