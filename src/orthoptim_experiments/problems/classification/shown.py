"""What is shown of a network in training."""

from orthoptim_experiments.harness.panels import Panel

PANELS = (Panel("time", "accuracy"), Panel("step", "accuracy"), Panel("time", "distance"))
"""The figures of the paper: accuracy against time, training curves, distance."""

COLUMNS = ("accuracy", "tta_accuracy", "distance", "max_distance", "optimizer_share", "images_per_second")
"""The last values that the report's table has."""
