"""Squared unitary circuits: likelihoods, the partition function, marginals, samples and in-painting, all exact."""

from orthoptim.experiments.circuits.evidence import log_marginal
from orthoptim.experiments.circuits.model import SquaredUnitaryCircuit, bits_per_dimension
from orthoptim.experiments.circuits.sampling import inpaint, sample

__all__ = ["SquaredUnitaryCircuit", "bits_per_dimension", "inpaint", "log_marginal", "sample"]
