"""The paper's experiments, and the harness they share. Importing this registers them."""

from orthoptim.experiments import cnn, pca, precision, procrustes, vit

__all__ = ["cnn", "pca", "precision", "procrustes", "vit"]
