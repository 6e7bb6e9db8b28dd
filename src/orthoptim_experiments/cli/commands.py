"""The command line. Commands only read their arguments, and call the room that does what they ask.

Each imports what it needs when it is called: no help page waits for torch.
"""

import json
import os
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from orthoptim_experiments.cli import help_texts
from orthoptim_experiments.cli.data_commands import app as data_app
from orthoptim_experiments.cli.messages import one_line_errors, tell, tell_defects
from orthoptim_experiments.cli.run import experiment_names, run
from orthoptim_experiments.cli.streams import patient_streams


class App(typer.Typer):
    """The command, whatever its standard streams are."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        with patient_streams():
            return super().__call__(*args, **kwargs)


app = App(help="Optimize orthogonal and unitary matrices at scale.", no_args_is_help=True, rich_markup_mode=None)
app.command("run", help=help_texts.RUN, short_help="Run an experiment of the paper.", no_args_is_help=True)(run)
app.add_typer(data_app, name="data")


def _methods() -> list[str]:
    from orthoptim_experiments.harness.methods import METHODS

    return list(METHODS)


def _figures() -> list[str]:
    from orthoptim_experiments.report.paper_figures import FIGURES

    return list(FIGURES)


@app.callback()
def main() -> None:
    """Optimize orthogonal and unitary matrices at scale."""


@app.command()
def report(
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RESULTS]...", help="Files of runs, or folders of them. Default: results."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    claims: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write claim, paper, measured and verdict as Markdown.")
    ] = None,
    plugin: Annotated[list[str] | None, typer.Option(metavar="MODULE", help="As with `run`: what runs are of.")] = None,
) -> None:
    """Write a page on results: curves, table, and what the paper says against what was measured.

    The page is one HTML file with all it needs inside. Beside it, in the folder "figures", each run gets a figure like
    the paper's, in PNG and PDF.
    """
    from orthoptim_experiments.cli.job import load_plugins
    from orthoptim_experiments.report import claims_table, describe, find_runs, write_report

    with one_line_errors():
        load_plugins(plugin)
        runs = find_runs(results or [Path("results")], tell)
        for run in runs:
            tell_defects(run)
        sections = [describe(run) for run in runs]
        for path in write_report(sections, out, figures=out.parent / "figures"):
            print(path)
        if claims is not None:
            claims.write_text(claims_table(sections), encoding="utf-8")
            print(claims)
    if open_:
        webbrowser.open(out.resolve().as_uri())


@app.command("experiments")
def list_experiments(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Only this one, with its scales and methods.",
            autocompletion=experiment_names,
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the experiments of the paper; of one, if named, what it is, its scales, variants and methods."""
    from orthoptim_experiments.cli import arguments, help_pages
    from orthoptim_experiments.problems import EXPERIMENTS

    with one_line_errors():
        if name is None:
            print("\n".join(f"{experiment.name:<12} {experiment.title}" for experiment in EXPERIMENTS.values()))
        else:
            print(help_pages.of(EXPERIMENTS[arguments.choice("experiment", name, list(EXPERIMENTS))]))


@app.command("methods", help=help_texts.METHODS)
def list_methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Only this one, with all its options.",
            autocompletion=_methods,
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the methods."""
    from rich.console import Console

    from orthoptim_experiments.cli import help_pages

    with one_line_errors():
        console = Console()
        for table in help_pages.method_tables(name):
            console.print(table)


@app.command()
def bench(
    workload: Annotated[
        list[str] | None, typer.Option(help="W1 … W6, W8, W9 (the default), W10, host; W7 with --launches. Repeatable.")
    ] = None,
    base: Annotated[str, typer.Option(help="Base optimizer: vadam, or sgd with momentum 0.9.")] = "vadam",
    only: Annotated[
        str | None, typer.Option(help="Only contenders whose name contains one of these, by comma.")
    ] = None,
    methods: Annotated[
        bool, typer.Option("--methods", help="All methods of this library side by side instead of POGO and its peers.")
    ] = False,
    growth: Annotated[bool, typer.Option(help="Also time against number and size of matrices.")] = False,
    launches: Annotated[
        bool,
        typer.Option("--launches", help="Count what a step launches on a GPU instead; needs none, and times nothing."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Ten seconds: W1, W5, W8, 0.2 s for each contender, none that compiles.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(help="Time for each contender. [default: 3]")] = None,
    threads: Annotated[int, typer.Option(help="Threads of torch on the CPU.")] = 2,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Step time and memory of POGO against its peers, as ratios measured in one process.

    Contenders take turns, so that noise hits all alike; minima and medians are given. Peers that are not installed are
    named and left out; the extra "peers" installs them.

    With --launches, kernel launches, copies, waits for the device, bytes and FLOPs of a step, counted on fake CUDA
    tensors, and the time that a roofline model makes of them: a model, not a measurement.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported: what its profiler remarks
    import torch
    from rich.console import Console

    from orthoptim_experiments.bench.launches.study import COUNTED
    from orthoptim_experiments.bench.launches.study import launches as count_launches
    from orthoptim_experiments.bench.tables import bench as run_bench
    from orthoptim_experiments.bench.workloads import DEFAULT, QUICK, QUICK_CONTENDERS
    from orthoptim_experiments.cli import arguments

    with one_line_errors():
        arguments.device(device)
        torch.set_num_threads(threads)
        if launches:
            figures = count_launches(workload or list(COUNTED), base, only, Console())
        else:
            names, only = workload or list(QUICK if quick else DEFAULT), only or (QUICK_CONTENDERS if quick else None)
            seconds = seconds or (0.2 if quick else 3.0)
            figures = run_bench(names, base, only, growth, seconds, device, Console(), methods)
        if json_file is not None:
            json_file.write_text(json.dumps(figures, indent=1))


@app.command()
def scale(
    models: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="By comma or repeated. Default: 0.1B,7B,70B,adapters.", show_default=False),
    ] = None,
    world_sizes: Annotated[
        str, typer.Option(metavar="SIZES", help="How many ranks there are, by comma.")
    ] = "8,64,256,1024",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """What a sharded step costs each rank: bytes, collectives and memory, in worlds of up to thousands of ranks.

    POGO as the library shards it, for both placements, against gathering every matrix on every rank, against sending
    each to an owner by itself, and against Muon done so. One rank at a time is run, without data and without peers;
    nothing is timed but the host. Takes some minutes of one core.
    """
    from rich.console import Console

    from orthoptim_experiments.bench.scale.models import MODELS
    from orthoptim_experiments.bench.scale.tables import scale as run_scale
    from orthoptim_experiments.cli import arguments

    with one_line_errors():
        names = [name.strip() for text in models or [] for name in text.split(",")]
        figures = run_scale(names or list(MODELS), arguments.world_sizes(world_sizes), Console())
        if json_file is not None:
            json_file.write_text(json.dumps(figures, indent=1))


@app.command()
def figure(
    name: Annotated[
        str | None, typer.Argument(help="Which; without it, all are listed.", autocompletion=_figures)
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RESULTS]...", help="Files of runs, or folders of them. Default: results."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where it goes, as PNG and PDF.")] = Path("figures"),
) -> None:
    """Draw a figure of the paper from the runs it shows, of each kind the largest that is there."""
    from orthoptim_experiments.cli import arguments
    from orthoptim_experiments.report import find_runs
    from orthoptim_experiments.report.paper_figures import FIGURES, make_figure

    with one_line_errors():
        if name is None:
            print("\n".join(f"{each:<15} {drawn.about}" for each, drawn in FIGURES.items()))
            return
        arguments.choice("figure", name, list(FIGURES))
        for path in make_figure(name, find_runs(results or [Path("results")], tell), out):
            print(path)


@app.command()
def cost(
    workload: Annotated[list[str] | None, typer.Argument(help="cnn-filters, cnn-kernels, vit, circuits.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every method.")] = 3,
    size: Annotated[str, typer.Option("--scale", help="paper, or a smaller one to try it out.")] = "paper",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures there.")
    ] = None,
) -> None:
    """What a step of each method costs at the paper's sizes, and which share of an epoch that is.

    Methods take turns on the network's own parameters, with gradients drawn once, on one thread of the CPU; the least
    processor time of each counts. Forward and backward pass are timed on a part of a batch.
    """
    from dataclasses import asdict

    import torch
    from rich.console import Console
    from rich.table import Table

    from orthoptim_experiments.cli import arguments
    from orthoptim_experiments.harness.environment import environment
    from orthoptim_experiments.problems import cost as costs

    with one_line_errors():
        torch.set_num_threads(1)
        figures: dict[str, Any] = {"environment": environment(torch.device("cpu")), "rounds": rounds, "scale": size}
        for name in workload or list(costs.WORKLOADS):
            arguments.choice("workload", name, list(costs.WORKLOADS))
            found = costs.measure(name, rounds, size, tell)
            table = Table("method", "step", "in POGO's", "of an epoch", "of the training", title=f"{name}, {size} size")
            for row in costs.table(found):
                table.add_row(*row)
            Console().print(table)
            print(f"forward and backward pass of a batch: {found[0].passes:.3g} s; {found[0].steps} steps an epoch")
            figures[name] = [asdict(each) for each in found]
            if json_file is not None:
                json_file.write_text(json.dumps(figures, indent=1))


@app.command("demo")
def show_demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where results and page go.")] = Path("results/demo"),
    open_: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
) -> None:
    """Two minutes that show what the library does: a matrix, a model of unitary matrices, the page on both."""
    from orthoptim_experiments.cli.demo import demo

    with one_line_errors():
        demo(out, open_)
