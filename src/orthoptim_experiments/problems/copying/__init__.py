"""Unitary recurrence: remember ten symbols over a long time, or read an image pixel by pixel."""
