"""The paper's experiments, and the harness they share. Importing this registers them."""

from orthoptim.experiments import cnn, pca, precision, procrustes, stepsize, vit
from orthoptim.experiments.circuits import experiment as circuits_experiment

__all__ = ["circuits_experiment", "cnn", "pca", "precision", "procrustes", "stepsize", "vit"]
