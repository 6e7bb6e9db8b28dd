"""The command line: ``orthoptim bench``."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from orthoptim.bench import contenders as who
from orthoptim.bench.growth import Growth, curves
from orthoptim.bench.measure import Timing, measure
from orthoptim.bench.workloads import WORKLOADS

app = typer.Typer(help="Optimize orthogonal and unitary matrices at scale.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Optimize orthogonal and unitary matrices at scale."""


@app.command()
def bench(
    workload: Annotated[list[str] | None, typer.Option(help="W1 … W6; all by default. May be repeated.")] = None,
    base: Annotated[str, typer.Option(help="Base optimizer: vadam, or sgd with momentum 0.9.")] = "vadam",
    only: Annotated[
        str | None, typer.Option(help="Only contenders whose name contains one of these, by comma.")
    ] = None,
    growth: Annotated[bool, typer.Option(help="Also time against number and size of matrices.")] = False,
    seconds: Annotated[float, typer.Option(help="Time for each contender.")] = 3.0,
    threads: Annotated[int, typer.Option(help="Threads of torch on the CPU.")] = 2,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Step time and memory of POGO against its peers, as ratios measured in one process.

    Contenders take turns, so that noise hits all alike; minima and medians are given. Peers that are not installed are
    named and left out; the extra "peers" installs them.
    """
    names = workload or list(WORKLOADS)
    for name in names:
        if name not in WORKLOADS:
            _fail(f"unknown workload {name!r}; there are {', '.join(WORKLOADS)}")
    if base not in ("vadam", "sgd"):
        _fail(f"unknown base {base!r}; use vadam or sgd")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        _fail(f"device {device!r} is not available here")
    torch.set_num_threads(threads)
    console = Console()
    for peer in who.missing():
        console.print(f"[yellow]{peer} is not installed and left out[/]")
    figures: dict[str, Any] = {"torch": torch.__version__, "threads": threads, "device": device, "base": base}
    for name in names:
        timings = _measure_workload(name, base, only, seconds, device, console)
        figures[name] = {contender: timing._asdict() for contender, timing in timings.items()}
        console.print(_table(name, timings))
    if growth:
        grown = curves(device, seconds / 6)
        figures["growth"] = [curve._asdict() for curve in grown]
        console.print(_growth_table(grown))
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1))


def _measure_workload(
    name: str, base: str, only: str | None, seconds: float, device: str, console: Console
) -> dict[str, Timing]:
    wanted = only.split(",") if only else [""]
    steps = {}
    for contender, make in who.contenders(base).items():
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
        _fail(f"no contender matches {only!r}; there are {', '.join(who.contenders(base))}")
    return measure(steps, seconds=seconds, device=device)


def _table(name: str, timings: dict[str, Timing]) -> Table:
    reference = next(iter(timings))
    caption = f"ratio: to {reference}; memory: extra, of a step, in units of the parameters"
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


def _fail(message: str) -> None:
    print(f"orthoptim: {message}", file=sys.stderr)
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
