"""Rotations for quantization: a small language model in four bits, rotated."""
