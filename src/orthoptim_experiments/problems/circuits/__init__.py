"""Squared unitary circuits: likelihoods, the partition function, marginals, samples and in-painting, all exact."""

from orthoptim_experiments.problems.circuits.evidence import log_marginal
from orthoptim_experiments.problems.circuits.model import SquaredUnitaryCircuit, bits_per_dimension
from orthoptim_experiments.problems.circuits.sampling import inpaint, sample

__all__ = ["SquaredUnitaryCircuit", "bits_per_dimension", "inpaint", "log_marginal", "sample"]
