"""Spectral steps against steps in the Frobenius norm, with equal tuning."""
