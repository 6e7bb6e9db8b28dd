"""`orthoptim run`: its options. What they do is in :mod:`orthoptim_experiments.cli.job`, which imports torch."""

from pathlib import Path
from typing import Annotated, Any

import typer

SCALES = ("tiny", "laptop", "paper")
INITS = ("auto", "project", "random")


def experiment_names() -> list[str]:
    """The experiments, for completion."""
    from orthoptim_experiments.problems import EXPERIMENTS

    return list(EXPERIMENTS)


def _offered(ctx: typer.Context) -> dict[str, list[str]]:
    """Methods and variants of the experiment that a command line names so far.

    It is no parameter yet where an option still lacks its value.
    """
    from orthoptim_experiments.harness.experiment import configuration
    from orthoptim_experiments.problems import EXPERIMENTS

    typed = [ctx.params.get("experiment"), *ctx.args]
    experiment = EXPERIMENTS[next((word for word in typed if word in EXPERIMENTS), "pca")]
    return {
        "methods": list(experiment.offered(configuration(experiment, "tiny"))),
        "variants": list(experiment.variants),
    }


def _complete_methods(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names that a list of methods, by comma, may go on with."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _offered(ctx)["methods"] if name.startswith(last)]


def _complete_variants(ctx: typer.Context, incomplete: str) -> list[str]:
    return [name for name in _offered(ctx)["variants"] if name.startswith(incomplete)]


def _option(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(metavar=metavar, help=text, show_default=False, autocompletion=lambda: list(names))


def run(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="One of those that `orthoptim experiments` lists, or of a plugin's.",
            autocompletion=experiment_names,
        ),
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
        str | None, _option("INIT", "cnn: project, random, or auto: project filters, random kernels.", *INITS)
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
    from orthoptim_experiments.cli.job import run_job  # not before: the help needs no torch

    run_job(experiment, options)
