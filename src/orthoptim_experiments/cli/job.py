"""What `orthoptim run` does: make the job that its options describe, run it, and print what came out."""

import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import typer
from rich.console import Console

from orthoptim_experiments.cli import arguments, torchrun
from orthoptim_experiments.cli.messages import one_line_errors, tell, tell_defects
from orthoptim_experiments.cli.progress import display
from orthoptim_experiments.cli.terminal_summary import summary, verdicts
from orthoptim_experiments.harness import methods as known_methods
from orthoptim_experiments.harness import ranks, runner
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.summary import Summary
from orthoptim_experiments.problems import EXPERIMENTS, datasets, plugins

SIZES = (
    *("epochs", "batch_size", "train_images", "amp", "widths", "init", "dim", "depth"),
    *("units", "evaluations", "plateau", "progress", "patience", "delay", "steps"),
)
"""The options that replace sizes of the scale, where the experiment has them."""


def run_job(experiment: str, options: Mapping[str, Any]) -> None:
    """Run an experiment, and print what came out."""
    with one_line_errors():
        load_plugins(options["plugin"])
        if options["data_dir"] is not None:
            os.environ[datasets.VARIABLE] = str(options["data_dir"])
        job = make_job(experiment, options)
        try:
            if "nproc" in job.config and not torchrun.is_worker():
                job.experiment.prepare(job.config)  # or every process would say what is missing
                raise typer.Exit(torchrun.launch(sys.argv[1:], options["nproc"], job.config["threads"]))
            if torchrun.is_worker():
                torchrun.join(torch.device(options["device"]))
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
