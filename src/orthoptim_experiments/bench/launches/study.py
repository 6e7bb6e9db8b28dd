"""``orthoptim bench --launches``: what the step of each contender launches, for each workload."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.bench import contenders
from orthoptim_experiments.bench.launches.counter import LaunchCounter, Operation, Totals
from orthoptim_experiments.bench.launches.fake_cuda import fake_cuda
from orthoptim_experiments.bench.launches.roofline import GPUS, modelled
from orthoptim_experiments.bench.workloads import WORKLOADS, Workload

Make = Callable[[list[Tensor]], contenders.Step]

COUNTED: dict[str, Workload] = {
    **WORKLOADS,
    "W7": Workload("48 matrices 4096×4096, bfloat16 with master copies", [(4096, 4096)] * 48, torch.bfloat16),
}
"""Workloads whose launches are counted: nothing is computed, so that they may be of any size."""


def counted_contenders(base: str) -> dict[str, Make]:
    """What can be counted, by name."""
    base_optimizer = oo.VAdam() if base == "vadam" else oo.SGD(momentum=0.9)
    table: dict[str, Make] = {
        "orthoptim safe": contenders.ours("safe", base_optimizer),
        "orthoptim half": contenders.ours("half", base_optimizer),
        "orthoptim strict": contenders.ours("strict", base_optimizer),
        "pogo-torch": contenders.pogo_torch(None if base == "vadam" else 0.9),
        "torch Adam, foreach": contenders.torch_adam(foreach=True),
        "torch Adam, fused": contenders.torch_adam(fused=True),
    }
    return {name: make for name, make in table.items() if name.split()[0] not in contenders.missing()}


def fake_parameters(workload: Workload) -> list[Tensor]:
    """Parameters with gradients, on a device that is not there; inside of :func:`fake_cuda` only."""
    params: list[Tensor] = []
    for shape in workload.shapes:
        param = torch.nn.Parameter(torch.empty(shape, dtype=workload.dtype, device="cuda"))
        param.grad = torch.empty_like(param)
        params.append(param)
    return params


def count(make: Make, workload: Workload) -> list[Operation]:
    """The operations of a step that is not the first, which creates the state."""
    with fake_cuda():
        step = make(fake_parameters(workload))
        with LaunchCounter():
            step()
        counter = LaunchCounter()
        with counter:
            step()
    return counter.operations


def totals(operations: Sequence[Operation]) -> Totals:
    """Sums over operations."""
    counter = LaunchCounter()
    counter.operations.extend(operations)
    return counter.totals()


def launches(names: Sequence[str], base: str, only: str | None, console: Console) -> dict[str, Any]:
    """Count, print a table, and return the figures.

    Raises:
        ValueError: for a workload or base that does not exist.
    """
    for name in names:
        if name not in COUNTED:
            raise ValueError(f"unknown workload {name!r}; there are {', '.join(COUNTED)}")
    if base not in ("vadam", "sgd"):
        raise ValueError(f"unknown base {base!r}; use vadam or sgd")
    wanted = only.split(",") if only else [""]
    figures: dict[str, Any] = {"torch": torch.__version__, "base": base, "counted_on": "fake CUDA tensors"}
    table = _table(base)
    for name in names:
        figures[name] = {}
        for contender, make in counted_contenders(base).items():
            if not any(part in contender for part in wanted):
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    operations = count(make, COUNTED[name])
            except (RuntimeError, NotImplementedError) as error:  # fused Adam takes no complex parameters
                reason = str(error).splitlines()[0]
                console.print(f"[yellow]{name}: {contender} is left out, as it cannot do this:[/] {reason}")
                continue
            model = {gpu: asdict(modelled(operations, peaks)) for gpu, peaks in GPUS.items()}
            figures[name][contender] = {**asdict(totals(operations)), "model_seconds": model}
            _add_row(table, name, contender, figures[name][contender])
        table.add_section()
    console.print(table)
    return figures


def _table(base: str) -> Table:
    caption = "Counts of one step on fake CUDA tensors. The last two columns are a roofline model, not a measurement."
    table = Table(title=f"launches of a step, {base}", caption=caption, title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("contender", no_wrap=True)
    heads = ("calls", "launches", "products", "copies", "syncs", "GB", "GFLOP")
    for head in (*heads, *(f"{gpu} ms (model)" for gpu in GPUS)):
        table.add_column(head, justify="right")
    return table


def _add_row(table: Table, name: str, contender: str, figures: dict[str, Any]) -> None:
    numbers = [str(figures[key]) for key in ("calls", "launches", "products", "copies", "syncs")]
    sizes = f"{figures['gigabytes']:.3f}", f"{figures['gigaflops']:.1f}"
    times = [f"{figures['model_seconds'][gpu]['step'] * 1e3:.2f}" for gpu in GPUS]
    table.add_row(name, contender, *numbers, *sizes, *times)
