"""How far matrices are from the manifold, and what happened to their steps: rows that print as a table."""

from collections.abc import Iterable
from typing import NamedTuple

from orthoptim.engine.tables import table


class Drift(NamedTuple):
    """How far the matrices of one group (or parameter) are from the manifold, and what happened to their steps.

    Attributes:
        group: index of the param group.
        matrices: how many there are.
        mean_distance: the mean of their distances ‖XXᴴ − I‖_F.
        max_distance: the largest of them.
        skipped: how many steps of a matrix were left out: not finite, or of a matrix without full rank.
        clipped: how many steps of a matrix were shortened.
        rescued: how many steps of a matrix brought it back from far away.
        deficient: how many matrices do not have full rank, so that no step can bring them back.
        name: the parameter, or the first of several.
    """

    group: int
    matrices: int
    mean_distance: float
    max_distance: float
    skipped: int
    clipped: int
    rescued: int = 0
    deficient: int = 0
    name: str = ""


class DriftTable(list[Drift]):
    """What ``opt.drift()`` returns: a list of :class:`Drift` that prints as a table.

    Args:
        rows: one for each group, or for each parameter.
        per_parameter: which of the two.
    """

    def __init__(self, rows: Iterable[Drift] = (), per_parameter: bool = False) -> None:
        super().__init__(rows)
        self.per_parameter = per_parameter

    def as_dict(self) -> dict[str, float]:
        """The numbers under keys such as ``"group0/max_distance"``, for loggers.

        Example:
            >>> DriftTable([Drift(0, 5, 1e-7, 3e-7, 0, 2)]).as_dict()["group0/max_distance"]
            3e-07
        """
        skip = ("group", "name")
        return {
            f"group{row.group}/{row.name + '/' if self.per_parameter else ''}{key}": value
            for row in self
            for key, value in row._asdict().items()
            if key not in skip
        }

    def __repr__(self) -> str:
        heads = ("group", "parameter", "matrices", "mean", "max", "skipped", "clipped", "rescued", "deficient")
        cells = [
            (
                str(row.group),
                row.name,
                str(row.matrices),
                f"{row.mean_distance:.1e}",
                f"{row.max_distance:.1e}",
                *map(str, (row.skipped, row.clipped, row.rescued, row.deficient)),
            )
            for row in self
        ]
        return table("distance ‖XXᴴ − I‖_F of each matrix X, and counts of steps", heads, cells)
