"""Text tables, for what ``drift()`` and ``plan()`` return."""

from collections.abc import Sequence

_NAME_WIDTH = 26  # with it a table of drift is 99 columns wide


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns that are aligned under their heads; long cells keep their end."""
    rows = [[_shortened(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    left = {"parameter", "dtype", "device", "form", "strategy"}
    lines = [
        "  ".join(
            cell.ljust(width) if head in left else cell.rjust(width)
            for head, cell, width in zip(heads, row, widths, strict=True)
        ).rstrip()
        for row in [heads, *rows]
    ]
    return "\n".join([title, *lines])


def _shortened(cell: str) -> str:
    """The end of a long name, which tells more than its beginning."""
    return cell if len(cell) <= _NAME_WIDTH else "…" + cell[1 - _NAME_WIDTH :]
