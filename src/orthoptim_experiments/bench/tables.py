"""The benchmark from end to end: measure, and show as tables."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from orthoptim_experiments.bench import contenders
from orthoptim_experiments.bench.growth import Growth, curves
from orthoptim_experiments.bench.measure import Timing, measure, silent_torch
from orthoptim_experiments.bench.workloads import WORKLOADS

Make = Callable[[list[Tensor]], contenders.Step]


def bench(
    names: Sequence[str],
    base: str,
    only: str | None,
    growth: bool,
    seconds: float,
    device: str,
    console: Console,
    methods: bool = False,
) -> dict[str, Any]:
    """Measure workloads, print a table for each, and return the figures; of POGO and its peers, or of all methods.

    Raises:
        ValueError: for a workload, base or contender that does not exist.
    """
    for name in names:
        if name not in WORKLOADS:
            raise ValueError(f"unknown workload {name!r}; there are {', '.join(WORKLOADS)}")
    if base not in ("vadam", "sgd"):
        raise ValueError(f"unknown base {base!r}; use vadam or sgd")
    for peer in () if methods else contenders.missing():
        console.print(f"[yellow]{peer} is not installed and left out[/]")
    table = contenders.methods() if methods else contenders.contenders(base)
    figures: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": device,
        "device_name": torch.cuda.get_device_name() if device.startswith("cuda") else "",
        "base": base,
    }
    for name in names:
        with silent_torch():
            timings = _measure_workload(name, table, only, seconds, device, console)
        figures[name] = {contender: timing._asdict() for contender, timing in timings.items()}
        console.print(_table(name, timings))
    if growth:
        grown = curves(device, seconds / 6)
        figures["growth"] = [curve._asdict() for curve in grown]
        console.print(_growth_table(grown))
    return figures


def _measure_workload(
    name: str, table: dict[str, Make], only: str | None, seconds: float, device: str, console: Console
) -> dict[str, Timing]:
    wanted = only.split(",") if only else [""]
    steps = {}
    for contender, make in table.items():
        if not any(part in contender for part in wanted):
            continue
        try:
            step = make(WORKLOADS[name].parameters(device))
            step()
        except (RuntimeError, NotImplementedError) as error:  # fused Adam, for one, takes no complex parameters
            reason = str(error).splitlines()[0]
            console.print(f"[yellow]{name}: {contender} is left out, as it cannot do this:[/] {reason}")
            continue
        steps[contender] = step
    if not steps:
        raise ValueError(f"no contender matches {only!r}; there are {', '.join(table)}")
    return measure(steps, seconds=seconds, device=device)


def _table(name: str, timings: dict[str, Timing]) -> Table:
    reference = next(iter(timings))
    caption = f"ratio: to {reference}; memory: extra, of a step, in units of the parameters"
    if "limit" in timings:
        caption += "; limit: the bare matrix products of the best form, without an optimizer"
    table = Table(title=f"{name}: {WORKLOADS[name].title}", caption=caption, title_justify="left")
    table.add_column("contender", no_wrap=True)
    for column in ("least ms", "median ms", "ratio", "of medians", "memory"):
        table.add_column(column, justify="right")
    first, size = timings[reference], WORKLOADS[name].nbytes()
    for contender, t in timings.items():
        ratios = f"{t.least / first.least:.2f}", f"{t.median / first.median:.2f}"
        table.add_row(
            contender, f"{t.least * 1e3:.2f}", f"{t.median * 1e3:.2f}", *ratios, f"{t.extra_bytes / size:.2f}"
        )
    return table


def _growth_table(grown: list[Growth]) -> Table:
    table = Table("time against", "sizes", "ms", "exponent of the last", title="growth", title_justify="left")
    for curve in grown:
        times = ", ".join(f"{seconds * 1e3:.3g}" for seconds in curve.seconds)
        table.add_row(curve.title, ", ".join(map(str, curve.sizes)), times, f"{curve.exponent:.2f}")
    return table
