"""Deterministic solvers for single matrices."""
