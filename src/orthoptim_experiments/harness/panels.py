"""The panels of figures and of the report page: which columns of the records are drawn, and against what."""

from dataclasses import dataclass

LABELS = {
    "abs_log_z": "|log Z|",
    "accuracy": "test accuracy",
    "bpd": "bits per dimension",
    "distance": "manifold distance",
    "gap": "raw gap",
    "log_z": "log Z",
    "loss": "loss",
    "max_distance": "largest manifold distance",
    "method": "",
    "optimizer_time": "time in the optimizer (s)",
    "processor_time": "processor time (s)",
    "projected_gap": "optimality gap",
    "step": "iteration",
    "test_bpd": "test bits per dimension",
    "time": "wall time (s)",
}
"""Axis labels of columns; others are labelled by their names."""

LOG = ("gap", "projected_gap", "distance", "max_distance", "abs_log_z")
"""The columns that are drawn on a log axis."""


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: mean and confidence band over seeds, a curve for each method.

    Attributes:
        x: Column of the horizontal axis, "time" or "step"; or "method", for bars of the last value of y.
        y: Column of the vertical axis.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is; None: if y is one of `LOG`. It also decides in which space means are taken.
        label: Of the vertical axis, if `LABELS` does not say it well.
        title: Above the panel.
        start: Whether the value before the first step is drawn. That of an untrained model may be so far off that it
            leaves no room for what is of interest.
        points: Whether one point for each method is drawn, at its last values, instead of curves.
        inset: A method whose curve is drawn once more, small and on linear axes.
        shade: Up to this value of y the panel is shaded: on the manifold as far as rounding lets one say.

    Example:
        >>> Panel("time", "accuracy").y_label, Panel("step", "gap").log
        ('test accuracy', True)
    """

    x: str
    y: str
    log_x: bool = False
    log_y: bool | None = None
    label: str = ""
    title: str = ""
    start: bool = True
    shade: float | None = None
    points: bool = False
    inset: str = ""

    @property
    def log(self) -> bool:
        """Whether the vertical axis is logarithmic."""
        return self.y in LOG if self.log_y is None else self.log_y

    @property
    def x_label(self) -> str:
        """The label of the horizontal axis."""
        return label(self.x)

    @property
    def y_label(self) -> str:
        """The label of the vertical axis."""
        return self.label or label(self.y)


@dataclass(frozen=True)
class Target:
    """A value of a column that trials aim at.

    Attributes:
        column: Its name.
        value: What is to be reached.
        below: Whether from above, as by a gap; an accuracy is reached from below.
    """

    column: str = "projected_gap"
    value: float = 1e-6
    below: bool = True


PAPER = (
    Panel("time", "projected_gap"),
    Panel("step", "projected_gap"),
    Panel("time", "distance"),
    Panel("time", "gap"),
)
"""The figures of the paper's single-matrix experiments."""


def label(column: str) -> str:
    """The axis label of a column."""
    return LABELS.get(column, column.replace("_", " "))
