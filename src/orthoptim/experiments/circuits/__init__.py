"""Squared unitary circuits: likelihoods, the partition function, marginals, samples and in-painting, all exact."""

from orthoptim.experiments.circuits.model import SquaredUnitaryCircuit, bits_per_dimension

__all__ = ["SquaredUnitaryCircuit", "bits_per_dimension"]
