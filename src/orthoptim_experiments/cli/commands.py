"""The command line. Commands only read their words, and call the room that does what they ask."""

import inspect
import json
import os
import shlex
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from orthoptim_experiments.bench.tables import bench as run_bench
from orthoptim_experiments.bench.workloads import WORKLOADS
from orthoptim_experiments.cli import arguments, help_pages
from orthoptim_experiments.cli.data_commands import app as data_app
from orthoptim_experiments.cli.progress import display
from orthoptim_experiments.cli.streams import patient_streams
from orthoptim_experiments.cli.terminal_summary import summary, verdicts
from orthoptim_experiments.harness import methods, runner
from orthoptim_experiments.harness.experiment import Experiment, configuration
from orthoptim_experiments.harness.records import ResultsError, Run, load
from orthoptim_experiments.harness.text import one_line
from orthoptim_experiments.problems import EXPERIMENTS, datasets


class App(typer.Typer):
    """The command, whatever its standard streams are."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        with patient_streams():
            return super().__call__(*args, **kwargs)


app = App(help="Optimize orthogonal and unitary matrices at scale.", no_args_is_help=True, rich_markup_mode=None)
run_app = typer.Typer(
    help=help_pages.RUN, short_help="Run an experiment of the paper.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(run_app, name="run")
app.add_typer(data_app, name="data")


@app.callback()
def main() -> None:
    """Optimize orthogonal and unitary matrices at scale."""


def _add(experiment: Experiment) -> None:
    """Make `orthoptim run NAME`."""
    variants = "; ".join(f"{name}: {text}" for name, text in experiment.variants.items()) or "none"

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        offered = experiment.methods(configuration(experiment, "tiny"))
        return [before + comma + name for name in offered if name.startswith(last)]

    def command(
        scale: Annotated[
            str,
            typer.Option(
                metavar="SCALE", help="tiny, laptop or paper.", autocompletion=lambda: list(experiment.scales)
            ),
        ] = "laptop",
        methods: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAMES",
                help="Names or shell patterns, by comma or repeated. "
                f"Default: {', '.join(experiment.default_methods)}.",
                autocompletion=complete,
                show_default=False,
            ),
        ] = None,
        seeds: Annotated[
            str | None,
            typer.Option(
                metavar="SEEDS", help="How many (3), a range (0-9) or a list (4,7). Default: as many as the scale has."
            ),
        ] = None,
        variant: Annotated[
            str | None,
            typer.Option(
                f"--{experiment.variant_option}",
                metavar=experiment.variant_option.upper(),
                help=variants,
                autocompletion=lambda: list(experiment.variants),
                hidden=not experiment.variants,
            ),
        ] = None,
        dtype: Annotated[
            str | None,
            typer.Option(
                metavar="DTYPE",
                help=f"{' or '.join(experiment.dtypes)}.",
                autocompletion=lambda: list(experiment.dtypes),
                hidden=len(experiment.dtypes) < 2,
            ),
        ] = None,
        device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, …")] = "cpu",
        threads: Annotated[
            int | None,
            typer.Option(
                min=1, metavar="N", help="Threads of torch on the CPU, in each process. Default: all cores, shared."
            ),
        ] = None,
        nproc: Annotated[
            str,
            typer.Option(
                metavar="N",
                help="Processes that train together, each on its part of every batch.",
                hidden=not experiment.parallel,
            ),
        ] = "1",
        sharded: Annotated[
            bool,
            typer.Option(
                "--sharded",
                help="With --nproc: each process keeps its part of every parameter (FSDP2), not all of them.",
                hidden=not experiment.parallel,
            ),
        ] = False,
        out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where results go.")] = Path("results"),
        set_: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="METHOD.OPTION=VALUE", help="Another hyperparameter. May be repeated."),
        ] = None,
        timeout: Annotated[
            float | None,
            typer.Option(metavar="SECONDS", help="Training seconds after which a trial is stopped. Default: none."),
        ] = None,
        retry: Annotated[bool, typer.Option("--retry", help="Run trials again that failed or timed out.")] = False,
        checkpoint_every: Annotated[
            float, typer.Option(metavar="SECONDS", help="Seconds between checkpoints of a trial.")
        ] = 5.0,
        data_dir: Annotated[
            Path | None,
            typer.Option(
                metavar="FOLDER",
                help="Where the data sets are; by default $ORTHOPTIM_DATA, else the user's cache.",
                hidden=not experiment.needs_data,
            ),
        ] = None,
        **settings: str | bool | None,
    ) -> None:
        with _one_line_errors():
            if data_dir is not None:
                os.environ[datasets.VARIABLE] = str(data_dir)
            scale = arguments.choice("scale", scale, list(experiment.scales))
            variant = variant and arguments.choice(experiment.variant_option, variant, list(experiment.variants))
            former = experiment.scales[scale].sizes
            sizes = {
                name: arguments.setting(name, value, former[name]) if isinstance(value, str) else value
                for name, value in settings.items()
                if value is not None
            }
            count = arguments.setting("nproc", nproc, 1)
            offered = list(experiment.methods(configuration(experiment, scale, variant=variant, sizes=sizes)))
            names = arguments.chosen_methods(experiment, offered, methods or [])
            config = configuration(
                experiment,
                scale,
                variant=variant,
                dtype=dtype and arguments.choice("dtype", dtype, experiment.dtypes),
                device=arguments.device(device),
                threads=threads or max(1, torch.get_num_threads() // count),
                nproc=count,
                sharded=sharded,
                sizes=sizes,
                overrides=arguments.overrides(set_ or [], names),
            )
            arguments.processes(experiment, config)
            chosen = arguments.seeds(seeds, experiment.scales[scale])
            job = runner.Job(experiment, config, names, chosen, out, timeout, retry, checkpoint_every)
            _run(job)

    _offer(command, experiment)
    run_app.command(experiment.name, help=help_pages.of(experiment), short_help=experiment.title)(command)


def _offer(command: Callable[..., None], experiment: Experiment) -> None:
    """Put an option for each setting of an experiment in the place of ``**settings``, where typer looks for them."""
    signature = inspect.signature(command)
    *fixed, _ = signature.parameters.values()
    extra = []
    for name, text in experiment.settings.items():
        former = experiment.scales["paper"].sizes[name]
        flag = isinstance(former, bool)
        option = typer.Option(help=text) if flag else typer.Option(help=text, metavar=name.upper(), show_default=False)
        kind = Annotated[bool | None, option] if flag else Annotated[str | None, option]
        extra.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))
    command.__signature__ = signature.replace(parameters=[*fixed, *extra])  # type: ignore[attr-defined]


def _run(job: runner.Job) -> None:
    for name in job.methods:
        methods.check(name, job.options(name))
    console = Console()
    try:
        run = _run_together(job) if "nproc" in job.config else _run_alone(job, console)
    except (runner.Interrupted, KeyboardInterrupt) as stopped:
        begun = load(job.path).trials if job.path.exists() else []  # processes take seconds to start
        done = sum(1 for trial in begun if trial.status)
        again = shlex.join(["orthoptim", *sys.argv[1:]])
        print(f"interrupted; {done} trials are done. To go on: {again}", file=sys.stderr)
        raise typer.Exit(128 + getattr(stopped, "signum", 2)) from None
    _notice(run)
    console.print(summary(run, job.methods))
    from orthoptim_experiments.report import describe, write_figures  # a second of imports

    section = describe(run)
    console.print(verdicts(section.findings))
    print(f"results: {job.path}")
    print(f"figure: {' '.join(map(str, write_figures(section, job.out / 'figures')))}")
    failed = {name: trial.message for name in job.methods for trial in run.of(name) if trial.status == "failed"}
    for name, message in failed.items():
        print(f"orthoptim: {name} failed: {message}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _run_alone(job: runner.Job, console: Console) -> Run:
    with display(console, job.methods, job.seeds) as watcher:
        return runner.run(job, watcher)


def _run_together(job: runner.Job) -> Run:
    from orthoptim_experiments.cli import launch  # half a second of imports

    return launch.run(job)


for _experiment in EXPERIMENTS.values():
    _add(_experiment)


@app.command()
def report(
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RESULTS]...", help="Files of runs, or folders of them. Default: results."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write a page on results: curves, table, and what the paper says against what was measured.

    The page is one HTML file with all it needs inside. Beside it, in the folder "figures", each run gets a figure like
    the paper's, in PNG and PDF.
    """
    from orthoptim_experiments.report import describe, find_runs, write_report  # a second of imports

    with _one_line_errors():
        runs = find_runs(results or [Path("results")], _say)
        for run in runs:
            _notice(run)
        for path in write_report([describe(run) for run in runs], out, figures=out.parent / "figures"):
            print(path)
    if open_:
        webbrowser.open(out.resolve().as_uri())


@app.command("methods", help=help_pages.METHODS_HELP)
def list_methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Only this one, with all its options.",
            autocompletion=lambda: list(methods.METHODS),
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the methods."""
    with _one_line_errors():
        console = Console()
        for table in help_pages.method_tables(name):
            console.print(table)


@app.command()
def bench(
    workload: Annotated[list[str] | None, typer.Option(help="W1 … W6; all by default. May be repeated.")] = None,
    base: Annotated[str, typer.Option(help="Base optimizer: vadam, or sgd with momentum 0.9.")] = "vadam",
    only: Annotated[
        str | None, typer.Option(help="Only contenders whose name contains one of these, by comma.")
    ] = None,
    methods: Annotated[
        bool, typer.Option("--methods", help="All methods of this library side by side instead of POGO and its peers.")
    ] = False,
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
    with _one_line_errors():
        arguments.device(device)
        torch.set_num_threads(threads)
        figures = run_bench(workload or list(WORKLOADS), base, only, growth, seconds, device, Console(), methods)
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
    nothing is timed. Takes about a minute.
    """
    from orthoptim_experiments.bench.scale.models import MODELS
    from orthoptim_experiments.bench.scale.tables import scale as run_scale  # imports torch.distributed.tensor

    with _one_line_errors():
        names = [name.strip() for text in models or [] for name in text.split(",")]
        figures = run_scale(names or list(MODELS), arguments.world_sizes(world_sizes), Console())
        if json_file is not None:
            json_file.write_text(json.dumps(figures, indent=1))


def _notice(run: Run) -> None:
    for line in ([run.notice] if run.notice else []) + run.defects:
        _say(line)


def _say(line: str) -> None:
    """Tell the user, who may read results on standard output."""
    print(f"orthoptim: {one_line(line)}", file=sys.stderr)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """What the user can do something about becomes one line and exit code 2."""
    try:
        yield
    except (ResultsError, ValueError) as error:
        _say(str(error))
        raise typer.Exit(2) from None
    except BrokenPipeError:  # whoever read the output has seen enough
        raise
    except OSError as error:
        _say(f"{error.filename or 'standard output'}: {error.strerror}")
        raise typer.Exit(2) from None
