"""The orthogonal Procrustes problem."""
