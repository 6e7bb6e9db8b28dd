"""A mixture of experts whose weights are orthonormal: many matrices in one parameter."""
