"""Running experiments from Python."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from orthoptim_experiments.harness import methods as known_methods
from orthoptim_experiments.harness import runner
from orthoptim_experiments.harness.experiment import Experiment, configuration
from orthoptim_experiments.harness.methods import Method
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.problems import EXPERIMENTS, plugins


def run(
    problem: str | Experiment,
    methods: Iterable[str | Method] | None = None,
    seeds: int | Iterable[int] | None = None,
    *,
    scale: str = "laptop",
    sizes: Mapping[str, Any] | None = None,
    variant: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    threads: int = 1,
    out: str | os.PathLike[str] | None = "results",
    timeout: float | None = None,
    watcher: runner.Watcher | None = None,
) -> Run:
    """Run methods on the seeds of a problem; what is complete in ``out`` already is not run again.

    Args:
        problem: the name of an experiment, or one of your own.
        methods: names, which may set options (``"POGO:lr=0.3"``), or methods of your own. Default: the experiment's.
        seeds: how many, or which. Default: as many as the scale has.
        scale: ``"tiny"``, ``"laptop"``, ``"paper"``, or one of your experiment's.
        sizes: what replaces sizes of the scale.
        variant: of the experiment.
        dtype: ``"float32"`` or ``"float64"``.
        device: the device.
        threads: torch's, on the CPU.
        out: the folder of results; None: none are kept.
        timeout: training seconds after which a trial is stopped.
        watcher: receives the progress.

    Returns:
        The records, with ``to_dataframe()``, ``to_csv(path)`` and ``to_latex()``.

    Raises:
        ValueError: in one line, for what is not known or makes no sense.
        ResultsError: if results cannot be read or written.
    """
    if isinstance(problem, Experiment):
        plugins.register(experiments=[problem])
    name = problem.name if isinstance(problem, Experiment) else problem
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    chosen = list(methods) if methods is not None else list(experiment.default_methods)
    plugins.register(methods=[method for method in chosen if isinstance(method, Method)])
    names = [method if isinstance(method, str) else method.name for method in chosen]
    places: dict[str, Any] = {"dtype": dtype, "device": device, "threads": threads}
    config = configuration(experiment, scale, variant=variant, sizes=sizes, **places)
    offered = experiment.offered(config)
    for each in names:
        if each not in offered and known_methods.parse(each)[0] not in offered:
            raise ValueError(f"unknown method {each!r} in {name}; there are {', '.join(offered)}")
    numbers = (
        range(experiment.scales[scale].seeds) if seeds is None else range(seeds) if isinstance(seeds, int) else seeds
    )
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        job = runner.Job(experiment, config, names, list(numbers), Path(folder), timeout)
        for each in names:
            known_methods.check(each, job.options(each))
        return runner.run(job, watcher)
