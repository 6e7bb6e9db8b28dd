"""`orthoptim run`: a command for each experiment, with its options."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer
from rich.console import Console

from orthoptim_experiments.cli import arguments, help_pages, torchrun
from orthoptim_experiments.cli.messages import one_line_errors, tell, tell_defects
from orthoptim_experiments.cli.progress import display
from orthoptim_experiments.cli.terminal_summary import summary, verdicts
from orthoptim_experiments.harness import methods as known_methods
from orthoptim_experiments.harness import ranks, runner
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.records import Run, load
from orthoptim_experiments.problems import EXPERIMENTS, datasets

app = typer.Typer(help=help_pages.RUN, no_args_is_help=True, rich_markup_mode=None)


def _complete_methods(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names that a list of methods, by comma, may go on with."""
    before, comma, last = incomplete.rpartition(",")
    experiment = EXPERIMENTS[ctx.info_name or ""]
    offered = experiment.methods(configuration(experiment, "tiny"))
    return [before + comma + name for name in offered if name.startswith(last)]


def _choice(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(metavar=metavar, help=text, autocompletion=lambda: list(names))


def _size(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, show_default=False)


Scale = Annotated[str, _choice("SCALE", "tiny, laptop or paper.", "tiny", "laptop", "paper")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES", help="Names or shell patterns, by comma or repeated.", autocompletion=_complete_methods
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="SEEDS", help="How many (3), a range (0-9) or a list (4,7). Default: as many as the scale has."
    ),
]
Dtype = Annotated[str | None, _choice("DTYPE", "float32 or float64.", "float32", "float64")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, …")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Threads of torch on the CPU, in each process. Default: all cores, shared."),
]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Where results go.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="METHOD.OPTION=VALUE", help="Another hyperparameter. May be repeated."),
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Training seconds after which a trial is stopped. Default: none."),
]
Retry = Annotated[bool, typer.Option("--retry", help="Run trials again that failed or timed out.")]
CheckpointEvery = Annotated[float, typer.Option(metavar="SECONDS", help="Seconds between checkpoints of a trial.")]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where the data sets are; by default $ORTHOPTIM_DATA, else the user's cache."),
]
Nproc = Annotated[
    int, typer.Option(min=1, metavar="N", help="Processes that train together, each on its part of every batch.")
]
Sharded = Annotated[
    bool,
    typer.Option(
        "--sharded", help="With --nproc: each process keeps its part of every parameter (FSDP2), not all of them."
    ),
]
Variant = Annotated[str | None, _choice("VARIANT", "code (A as published) or paper (as in the text).", "code", "paper")]
Constraint = Annotated[
    str | None,
    typer.Option(
        "--constraint",
        metavar="CONSTRAINT",
        help="filters (a layer is one orthogonal matrix), kernels (each 3×3 kernel is one) or none (Adam alone).",
        autocompletion=lambda: ["filters", "kernels", "none"],
    ),
]
Epochs = Annotated[str | None, _size("EPOCHS", "Length of the training, at most.")]
BatchSize = Annotated[str | None, _size("IMAGES", "Images of a batch.")]
TrainImages = Annotated[str | None, _size("IMAGES", "Train (and validate) on the first so many images.")]
Widths = Annotated[str | None, _size("WIDTHS", "Channels of the three groups, as 64,256,256.")]
Init = Annotated[
    str | None,
    _size("INIT", "project (the network's own start, projected), random, or auto: project filters, random kernels."),
]
Amp = Annotated[bool | None, typer.Option(help="Forward pass in bfloat16; weights stay float32.")]
Dim = Annotated[
    str | None, _size("DIM", "Dimension of the tokens, and of the orthogonal matrices; a multiple of the heads.")
]
Depth = Annotated[str | None, _size("DEPTH", "Number of blocks.")]
Units = Annotated[str | None, _size("UNITS", "K, the length of each node's output.")]
Evaluations = Annotated[str | None, _size("N", "Records in an epoch.")]
Plateau = Annotated[str | None, _size("EPOCHS", "Epochs without progress after which the learning rate is halved.")]
Progress = Annotated[str | None, _size("BPD", "Gain of validation bpd that counts as progress.")]
Patience = Annotated[str | None, _size("EPOCHS", "Epochs without a gain of 0.001 bpd after which training ends.")]

RESULTS = Path("results")

Function = TypeVar("Function", bound=Callable[..., Any])


def _command(name: str) -> Callable[[Function], Function]:
    experiment = EXPERIMENTS[name]
    return app.command(name, help=help_pages.of(experiment), short_help=experiment.title)


@_command("pca")
def pca(
    scale: Scale = "laptop",
    methods: Methods = None,
    seeds: Seeds = None,
    variant: Variant = None,
    dtype: Dtype = None,
    device: Device = "cpu",
    threads: Threads = None,
    out: Out = RESULTS,
    overrides: Overrides = None,
    timeout: Timeout = None,
    retry: Retry = False,
    checkpoint_every: CheckpointEvery = 5.0,
) -> None:
    """Online PCA."""
    _run("pca", locals())


@_command("procrustes")
def procrustes(
    scale: Scale = "laptop",
    methods: Methods = None,
    seeds: Seeds = None,
    dtype: Dtype = None,
    device: Device = "cpu",
    threads: Threads = None,
    out: Out = RESULTS,
    overrides: Overrides = None,
    timeout: Timeout = None,
    retry: Retry = False,
    checkpoint_every: CheckpointEvery = 5.0,
) -> None:
    """Orthogonal Procrustes."""
    _run("procrustes", locals())


@_command("precision")
def precision(
    scale: Scale = "laptop",
    methods: Methods = None,
    seeds: Seeds = None,
    variant: Variant = None,
    device: Device = "cpu",
    threads: Threads = None,
    out: Out = RESULTS,
    overrides: Overrides = None,
    timeout: Timeout = None,
    retry: Retry = False,
    checkpoint_every: CheckpointEvery = 5.0,
) -> None:
    """Online PCA in three precisions."""
    _run("precision", locals())


@_command("cnn")
def cnn(
    scale: Scale = "laptop",
    methods: Methods = None,
    seeds: Seeds = None,
    constraint: Constraint = None,
    dtype: Dtype = None,
    device: Device = "cpu",
    threads: Threads = None,
    nproc: Nproc = 1,
    sharded: Sharded = False,
    out: Out = RESULTS,
    overrides: Overrides = None,
    timeout: Timeout = None,
    retry: Retry = False,
    checkpoint_every: CheckpointEvery = 5.0,
    data_dir: DataDir = None,
    epochs: Epochs = None,
    widths: Widths = None,
    batch_size: BatchSize = None,
    train_images: TrainImages = None,
    init: Init = None,
    amp: Amp = None,
) -> None:
    """A convolutional network on CIFAR-10."""
    _run("cnn", locals())


@_command("vit")
def vit(
    scale: Scale = "laptop",
    methods: Methods = None,
    seeds: Seeds = None,
    device: Device = "cpu",
    threads: Threads = None,
    out: Out = RESULTS,
    overrides: Overrides = None,
    timeout: Timeout = None,
    retry: Retry = False,
    checkpoint_every: CheckpointEvery = 5.0,
    data_dir: DataDir = None,
    epochs: Epochs = None,
    dim: Dim = None,
    depth: Depth = None,
    batch_size: BatchSize = None,
    train_images: TrainImages = None,
    amp: Amp = None,
) -> None:
    """A vision transformer on CIFAR-10."""
    _run("vit", locals())


@_command("circuits")
@_command("stepsize")
def circuits(
    ctx: typer.Context,
    scale: Scale = "laptop",
    methods: Methods = None,
    seeds: Seeds = None,
    dtype: Dtype = None,
    device: Device = "cpu",
    threads: Threads = None,
    nproc: Nproc = 1,
    sharded: Sharded = False,
    out: Out = RESULTS,
    overrides: Overrides = None,
    timeout: Timeout = None,
    retry: Retry = False,
    checkpoint_every: CheckpointEvery = 5.0,
    data_dir: DataDir = None,
    units: Units = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    train_images: TrainImages = None,
    evaluations: Evaluations = None,
    plateau: Plateau = None,
    progress: Progress = None,
    patience: Patience = None,
) -> None:
    """Squared unitary circuits."""
    _run(ctx.info_name or "", locals())


def _run(name: str, options: Mapping[str, Any]) -> None:
    """Run an experiment with the options of its command, and print what came out."""
    with one_line_errors():
        if options.get("data_dir") is not None:
            os.environ[datasets.VARIABLE] = str(options["data_dir"])
        job = make_job(name, options)
        try:
            if "nproc" in job.config and not torchrun.is_worker():
                job.experiment.prepare(job.config)  # or every process would say what is missing
                status = torchrun.launch(sys.argv[1:], job.config["nproc"], job.config["threads"])
                raise typer.Exit(status)
            if torchrun.is_worker():
                torchrun.join(torch.device(job.config["device"]))
            console = Console()
            with display(console, job.methods, job.seeds) as watcher:
                run = runner.run(job, watcher)
        except (runner.Interrupted, KeyboardInterrupt) as stopped:
            raise typer.Exit(_interrupted(job, getattr(stopped, "signum", 2))) from None
        if ranks.is_first():
            _print_results(job, run, console)


def make_job(name: str, options: Mapping[str, Any]) -> runner.Job:
    """What the options of a command ask for.

    Raises:
        ValueError: in one line, if it cannot be had.
    """
    experiment = EXPERIMENTS[name]
    scale = arguments.choice("scale", options["scale"], list(experiment.scales))
    variant, dtype = options.get(experiment.variant_option), options.get("dtype")
    default_sizes = experiment.scales[scale].sizes
    sizes = {
        key: arguments.setting(key, value, default_sizes[key]) if isinstance(value, str) else value
        for key, value in options.items()
        if key in default_sizes and value is not None
    }
    chosen: dict[str, Any] = {
        "variant": variant and arguments.choice(experiment.variant_option, variant, list(experiment.variants)),
        "sizes": sizes,
    }
    offered = list(experiment.methods(configuration(experiment, scale, **chosen)))
    names = arguments.chosen_methods(experiment, offered, options["methods"] or [])
    nproc = options.get("nproc", 1)
    config = configuration(
        experiment,
        scale,
        **chosen,
        dtype=dtype and arguments.choice("dtype", dtype, experiment.dtypes),
        device=arguments.device(options["device"]),
        threads=options["threads"] or max(1, torch.get_num_threads() // nproc),
        nproc=nproc,
        sharded=options.get("sharded", False),
        overrides=arguments.overrides(options["overrides"] or [], names),
    )
    arguments.check_processes(config)
    seeds = arguments.seeds(options["seeds"], experiment.scales[scale])
    rest = (options["timeout"], options["retry"], options["checkpoint_every"])
    job = runner.Job(experiment, config, names, seeds, options["out"], *rest)
    for method in job.methods:
        known_methods.check(method, job.options(method))
    return job


def _interrupted(job: runner.Job, signum: int) -> int:
    begun = load(job.path).trials if job.path.exists() else []  # processes take seconds to start
    done = sum(1 for trial in begun if trial.status)
    again = shlex.join(["orthoptim", *sys.argv[1:]])
    print(f"interrupted; {done} trials are done. To go on: {again}", file=sys.stderr)
    return 128 + signum


def _print_results(job: runner.Job, run: Run, console: Console) -> None:
    from orthoptim_experiments.report import describe, write_figures  # a second of imports

    tell_defects(run)
    console.print(summary(run, job.methods))
    section = describe(run)
    console.print(verdicts(section.findings))
    print(f"results: {job.path}")
    print(f"figure: {' '.join(map(str, write_figures(section, job.out / 'figures')))}")
    failed = {name: trial.message for name in job.methods for trial in run.of(name) if trial.status == "failed"}
    for name, message in failed.items():
        tell(f"{name} failed: {message}")
    if failed:
        raise typer.Exit(1)
