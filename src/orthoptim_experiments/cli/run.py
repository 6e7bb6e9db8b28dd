"""`orthoptim run`."""

import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from orthoptim_experiments.cli import arguments, torchrun
from orthoptim_experiments.cli.messages import one_line_errors, tell, tell_defects
from orthoptim_experiments.cli.progress import display
from orthoptim_experiments.cli.terminal_summary import summary, verdicts
from orthoptim_experiments.harness import methods as known_methods
from orthoptim_experiments.harness import ranks, runner
from orthoptim_experiments.harness.experiment import Experiment, configuration
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.summary import Summary
from orthoptim_experiments.problems import EXPERIMENTS, datasets, plugins
from orthoptim_experiments.problems.cnn.training import INIT_NAMES

SCALES = ("tiny", "laptop", "paper")
SIZES = (
    *("epochs", "batch_size", "train_images", "amp", "widths", "init", "dim", "depth"),
    *("units", "evaluations", "plateau", "progress", "patience", "delay", "steps"),
)
"""The options that replace sizes of the scale, where the experiment has them."""


def _typed_experiment(ctx: typer.Context) -> Experiment:
    """The experiment that a command line names so far; it is no parameter yet where an option still lacks its value."""
    typed = [ctx.params.get("experiment"), *ctx.args]
    return EXPERIMENTS[next((word for word in typed if word in EXPERIMENTS), "pca")]


def _complete_methods(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names that a list of methods, by comma, may go on with."""
    before, comma, last = incomplete.rpartition(",")
    experiment = _typed_experiment(ctx)
    offered = experiment.offered(configuration(experiment, "tiny"))
    return [before + comma + name for name in offered if name.startswith(last)]


def _complete_variants(ctx: typer.Context, incomplete: str) -> list[str]:
    return [name for name in _typed_experiment(ctx).variants if name.startswith(incomplete)]


def _option(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(metavar=metavar, help=text, show_default=False, autocompletion=lambda: list(names))


def run(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help=", ".join(EXPERIMENTS), autocompletion=lambda: list(EXPERIMENTS))
    ],
    scale: Annotated[str, _option("SCALE", "tiny, laptop (the default) or paper.", *SCALES)] = "laptop",
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Names or shell patterns, by comma or repeated. Default: those of the experiment.",
            autocompletion=_complete_methods,
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str | None, _option("SEEDS", "How many (3), a range (0-9) or a list (4,7). Default: as many as the scale has.")
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            "--constraint",
            metavar="VARIANT",
            help="pca, precision: code or paper. cnn: filters, kernels or none.",
            autocompletion=_complete_variants,
        ),
    ] = None,
    dtype: Annotated[str | None, _option("DTYPE", "float32 (the default) or float64.", "float32", "float64")] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, …")] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Threads of torch on the CPU, in each process. Default: all cores, shared."
        ),
    ] = None,
    nproc: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes that train together, each on its part of every batch.")
    ] = 1,
    sharded: Annotated[
        bool,
        typer.Option(
            "--sharded", help="With --nproc: each process keeps its part of every parameter (FSDP2), not all of them."
        ),
    ] = False,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where results go.")] = Path("results"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.OPTION=VALUE", help="Another hyperparameter. May be repeated."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[METHOD.]OPTION=VALUES", help="One contender for each value, by comma; of all methods by default."
        ),
    ] = None,
    plugin: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="A file my_module.py, or a module, with METHODS or EXPERIMENTS."),
    ] = None,
    timeout: Annotated[
        float | None,
        _option("SECONDS", "Training seconds (of the processor on a CPU) until a trial is stopped; more let it go on."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run trials again that failed.")] = False,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds between checkpoints of a trial.")
    ] = 5.0,
    data_dir: Annotated[
        Path | None, _option("FOLDER", "Where the data sets are. Default: $ORTHOPTIM_DATA, else the user's cache.")
    ] = None,
    epochs: Annotated[str | None, _option("EPOCHS", "Networks: length of the training, at most.")] = None,
    batch_size: Annotated[str | None, _option("IMAGES", "Networks: images of a batch.")] = None,
    train_images: Annotated[str | None, _option("IMAGES", "Networks: train on the first so many images.")] = None,
    amp: Annotated[
        bool | None, typer.Option(help="cnn, vit: forward pass in bfloat16; weights stay float32.", show_default=False)
    ] = None,
    widths: Annotated[str | None, _option("WIDTHS", "cnn: channels of the three groups, as 64,256,256.")] = None,
    init: Annotated[
        str | None, _option("INIT", "cnn: project, random, or auto: project filters, random kernels.", *INIT_NAMES)
    ] = None,
    dim: Annotated[str | None, _option("DIM", "vit: dimension of the tokens; a multiple of the heads.")] = None,
    depth: Annotated[str | None, _option("DEPTH", "vit: number of blocks.")] = None,
    units: Annotated[
        str | None, _option("UNITS", "circuits, stepsize: K, the length of each node's output. copying: of the state.")
    ] = None,
    evaluations: Annotated[str | None, _option("N", "circuits, stepsize: records in an epoch.")] = None,
    plateau: Annotated[
        str | None, _option("EPOCHS", "circuits, stepsize: epochs without progress until the learning rate is halved.")
    ] = None,
    progress: Annotated[
        str | None, _option("BPD", "circuits, stepsize: gain of validation bpd that counts as progress.")
    ] = None,
    patience: Annotated[
        str | None, _option("EPOCHS", "circuits, stepsize: epochs without a gain of 0.001 bpd until training ends.")
    ] = None,
    delay: Annotated[str | None, _option("T", "copying: over how many steps symbols are remembered.")] = None,
    steps: Annotated[str | None, _option("N", "copying, experts, rotations: length of the training.")] = None,
) -> None:
    """Run an experiment, and print what came out."""
    options = {name: value for name, value in locals().items() if name != "experiment"}
    with one_line_errors():
        load_plugins(plugin)
        if data_dir is not None:
            os.environ[datasets.VARIABLE] = str(data_dir)
        job = make_job(experiment, options)
        try:
            if "nproc" in job.config and not torchrun.is_worker():
                job.experiment.prepare(job.config)  # or every process would say what is missing
                raise typer.Exit(torchrun.launch(sys.argv[1:], nproc, job.config["threads"]))
            if torchrun.is_worker():
                torchrun.join(torch.device(device))
            console = Console()
            with display(console, job.methods, job.seeds) as watcher:
                finished = runner.run(job, watcher)
        except (runner.Interrupted, KeyboardInterrupt) as stopped:
            raise typer.Exit(_interrupted(job, getattr(stopped, "signum", 2))) from None
        if ranks.is_first():
            _print_results(job, finished, console)


def load_plugins(named: Sequence[str] | None) -> None:
    """Load the plugins of installed packages, and those that are named."""
    plugins.load_installed()
    for plugin in named or []:
        plugins.load(plugin)


def make_job(name: str, options: Mapping[str, Any]) -> runner.Job:
    """The run that the options of the command describe.

    Raises:
        ValueError: in one line, if it cannot be had.
    """
    experiment = EXPERIMENTS[arguments.choice("experiment", name, list(EXPERIMENTS))]
    scale = arguments.choice("scale", options["scale"], list(experiment.scales))
    variant, dtype, nproc = options["variant"], options["dtype"], options["nproc"]
    chosen: dict[str, Any] = {
        "variant": variant and arguments.choice("variant", variant, list(experiment.variants)),
        "sizes": arguments.sizes(experiment, scale, {size: options[size] for size in SIZES}),
    }
    offered = list(experiment.offered(configuration(experiment, scale, **chosen)))
    names = arguments.chosen_methods(experiment, offered, options["methods"] or [])
    names = arguments.with_settings(arguments.with_grid(names, options["grid"] or []), options["overrides"] or [])
    config = configuration(
        experiment,
        scale,
        **chosen,
        dtype=dtype and arguments.choice("dtype", dtype, experiment.dtypes),
        device=arguments.device(options["device"]),
        threads=options["threads"] or max(1, torch.get_num_threads() // nproc),
        nproc=nproc,
        sharded=options["sharded"],
    )
    config |= experiment.sweep_sizes(config) if options["grid"] else {}
    arguments.check_processes(experiment, config)
    seeds = arguments.seeds(options["seeds"], experiment.scales[scale])
    rest = (options["timeout"], options["retry"], options["checkpoint_every"])
    job = runner.Job(experiment, config, names, seeds, options["out"], *rest)
    for method in job.methods:
        known_methods.check(method, job.options(method))
    return job


def best_of_sweep(summaries: Sequence[Summary], target: Target | None) -> str:
    """A line on the best of the contenders whose names set options; empty unless there are several.

    The first at the target; in networks the best on what was held out for validation, by accuracy or bits per
    dimension.
    """
    swept = [each for each in summaries if ":" in each.method]
    if len(swept) < 2:
        return ""
    for name, sign in (("accuracy", -1), ("bpd", 1), ("projected_gap", 1), ("loss", 1)):
        known = {each.method: value.mean * sign for each in swept if (value := each.finals.get(name)) is not None}
        if target is not None and any(math.isfinite(each.rank) for each in swept):
            known, name = {each.method: each.rank for each in swept}, f"time to {target.value:.0e}"
        if known:
            best = min(known, key=known.__getitem__)
            return f"best of the sweep: {best}, by {name}, of {len(swept)} contenders with equal budgets"
    return ""


def _interrupted(job: runner.Job, signum: int) -> int:
    begun = load(job.path).trials if job.path.exists() else []  # processes take seconds to start
    done = sum(1 for trial in begun if trial.status)
    again = shlex.join(["orthoptim", *sys.argv[1:]])
    print(f"interrupted; {done} trials are done. To go on: {again}", file=sys.stderr)
    return 128 + signum


def _print_results(job: runner.Job, run: Run, console: Console) -> None:
    from orthoptim_experiments.report import describe, write_figures  # a second of imports

    tell_defects(run)
    section = describe(run)
    asked = [each for each in section.summaries() if each.method in job.methods]
    console.print(summary(run, asked, section.target, section.clock))
    console.print(verdicts(section.findings, section.paper_scale))
    if best := best_of_sweep(asked, section.target):
        print(best)
    for note in section.notes:
        console.print(note, markup=False, highlight=False)
    print(f"results: {job.path}")
    print(f"figure: {' '.join(map(str, write_figures(section, job.out / 'figures')))}")
    failed = {name: trial.message for name in job.methods for trial in run.of(name) if trial.status == "failed"}
    for name, message in failed.items():
        tell(f"{name} failed: {message}")
    if failed:
        raise typer.Exit(1)
