"""How far matrices are from the manifold, and what happened to their steps: rows that print as a table."""

from collections.abc import Iterable
from typing import NamedTuple

from orthoptim.engine.tables import table


class Drift(NamedTuple):
    """How far the matrices of one group (or parameter) are from the manifold, and what happened to their steps.

    Attributes:
        group: index of the param group.
        matrices: number of matrices.
        mean_distance: mean of their distances ‖XXᴴ − I‖_F.
        max_distance: largest of their distances.
        skipped: steps that left a matrix unchanged: its gradient was not finite, or it had no full rank.
        clipped: steps that were shortened, counted per matrix.
        rescued: steps that brought a matrix back from far off the manifold.
        deficient: matrices without full rank, which no step can bring back.
        name: name of the parameter, or of the first of several.
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
