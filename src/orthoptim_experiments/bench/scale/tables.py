"""The study as tables."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from orthoptim_experiments.bench.scale.models import MODELS
from orthoptim_experiments.bench.scale.study import Row, check, compare

CAPTION = (
    "One step in float32, measured on the rank that moves most. calls: collectives. mean: bytes that ranks send on "
    "average, by formula. extra: the most memory of the step beyond parameters, gradients and state. TFLOP: of matrix "
    "products, on the rank that has most of them. host: processor time of Python for a step on the meta device, whose "
    "operations are slower to launch than those of a GPU. first dim: FSDP2's own placement. long dim: that of "
    "long_dim_placement."
)
_WIDTH = 112  # of a table; a line that is longer than the terminal is still better than figures that are cut off


def scale(models: Sequence[str], worlds: Sequence[int], console: Console) -> list[dict[str, Any]]:
    """Study models and world sizes, print a table for each model, and return the figures.

    Raises:
        ValueError: for a model there is none of, or a world of fewer than two ranks.
    """
    check(models, worlds)
    console.width = max(console.width, _WIDTH)
    figures: list[dict[str, Any]] = []
    for name in models:
        table = _empty_table(name)
        with console.status("") as status:
            for world in worlds:
                status.update(f"{name}, {world} ranks")
                rows = list(compare(name, world))
                figures.extend(row.plain() for row in rows)
                for row in rows:
                    table.add_row(*_cells(row), end_section=row is rows[-1])
        console.print(table)
    console.print(CAPTION)
    return figures


def _empty_table(name: str) -> Table:
    model = MODELS[name]
    count = model.layers * len(model.layer())
    title = f"{name}: {model.title}, {count} matrices, {model.entries / 1e9:.2f}e9 parameters"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("ranks", justify="right", no_wrap=True)
    table.add_column("contender", no_wrap=True)
    table.add_column("strategy")
    for column in ("calls", "sent", "received", "mean", "extra", "state", "TFLOP", "host"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _cells(row: Row) -> list[str]:
    figures = row.busiest
    contender = f"ours, {row.placement}" if row.contender == "orthoptim" else row.contender
    return [
        str(row.world),
        contender,
        ", ".join(row.strategies),
        str(sum(figures.collectives.values())),
        size(figures.sent),
        size(figures.received),
        size(row.mean),
        size(figures.extra),
        size(figures.state),
        f"{figures.flops / 1e12:.3g}",
        f"{1e3 * figures.host:.0f} ms" if figures.host else "",
    ]


def size(count: float) -> str:
    """Bytes, as people read them.

    Example:
        >>> size(0), size(999), size(1.5e9), size(123456789012)
        ('0', '999 B', '1.5 GB', '123 GB')
    """
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} B" if count else "0"
