"""The texts of help pages."""

import inspect
import re
from collections.abc import Iterator

from rich.table import Table

import orthoptim as oo
from orthoptim_experiments.cli.torchrun import RESTARTS
from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.experiment import Experiment, configuration
from orthoptim_experiments.harness.methods import BASES, METHODS, Method

SHARED = ("view", "side", "maximize", "compile")
"""Options that every orthoptimizer has."""

_AS_IS = "\b\n"  # typer leaves the line breaks of such a paragraph alone

RUN = f"""
Run an experiment of the paper: every method on every seed, with the paper's hyperparameters. What they are:
`orthoptim experiments` and `orthoptim experiments NAME`.

Results go to OUT/EXPERIMENT-ID.jsonl, one line per record, as they come. ID stands for the configuration (scale,
variant, dtype, device, threads, processes), not for methods and seeds: ask for more of them, and only what is missing
is run. A method with other hyperparameters is another contender of the same run, named POGO:lr=0.3: by --set, by --grid
for each value, or by that name among the methods. In a sweep of a network a tenth of the training images is held out
and takes the place of the test images.

A run that was stopped, by Ctrl-C or by a power cut, goes on where it was when the same command is given again. Nothing
that is complete is computed twice.

Times are seconds of training alone: the clock stops for evaluation and waits for the device. On a CPU, which others may
share, the time of the processor counts (for verdicts, rankings and --timeout); on a GPU that of the wall. A trial that
was stopped by --timeout goes on from there when a longer one is given.

With --nproc N (circuits, cnn, stepsize), N processes train together: each takes its part of every batch, gradients
are summed, and records are those of whole batches. Batches are normalised as a whole, too. So N processes train the
model that one trains, up to rounding; training amplifies that, as it does with another number of threads (by
--dtype float64 the two are seen to agree). All have the same number of threads, the cores shared among them unless
--threads says otherwise; times and memory are those of the first. If one is killed all are started again and go on from
the last checkpoint, to the same results, bit by bit; after {RESTARTS} such losses the run is given up. With --sharded
each process holds its part of every parameter and of the optimizer's state, gathered only where it is needed (FSDP2).

{_AS_IS}Examples:
  orthoptim run pca                                        all methods, minutes
  orthoptim run pca --methods POGO,RGD --seeds 1           two of them, on one seed
  orthoptim run pca --methods 'POGO*' --variant paper      POGO with every landing
  orthoptim run procrustes --set POGO.lr=0.3               another learning rate
  orthoptim run pca --grid lr=0.1,0.2,0.5 --methods POGO   a sweep; the best is named
  orthoptim run pca --plugin mine.py --methods Mine,POGO   a method of your own: docs/researchers.md
  orthoptim run precision --scale paper --device cuda      the paper's sizes, on a GPU
  orthoptim run circuits --units 6 --methods POGO          a larger circuit
  orthoptim run cnn --nproc 4                              four processes, each on a quarter of every batch

{_AS_IS}Exit codes:
  0    all trials have ended (converged, out of budget, diverged or timed out)
  1    a method failed; the others went on
  2    the command, the results, the disk or the processes are not in order; one line says what to do
  130  interrupted
"""

METHODS_HELP = """
List the methods that experiments compare, with their options; of one, if named.

Options are set in experiments with --set METHOD.OPTION=VALUE. Those of the base optimizer are set alike:
--set POGO.base=SGD --set POGO.momentum=0.9.
"""


def of(experiment: Experiment) -> str:
    """The description of an experiment, with its scales, variants and methods."""
    options = experiment.methods(configuration(experiment, "paper"))
    lists = {
        "Scales": {name: f"{scale.summary}; {scale.seeds} seeds" for name, scale in experiment.scales.items()},
        "Variants": experiment.variants,
        "Methods, with their hyperparameters at paper scale": {name: _options(options[name]) for name in options},
    }
    parts = [
        "\n".join([f"{title}:", *(f"  {name:<14} {text}" for name, text in lines.items())])
        for title, lines in lists.items()
        if lines
    ]
    usual = f"Run by default: {', '.join(experiment.default_methods)}."
    return "\n\n".join([f"{experiment.title}.", experiment.about.strip(), *parts, usual])


def _options(options: methods.Options) -> str:
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in options.items()
    )


def method_tables(name: str | None) -> Iterator[Table]:
    """One table of all methods and one of the base optimizers; or one of all options of a method."""
    if name is not None:
        yield _options_table(methods.find(name))
        return
    table = Table("method", "", "options and defaults", title="Methods", title_justify="left")
    table.caption = f"ours also have {', '.join(SHARED)}; more by: orthoptim methods NAME"
    for method in METHODS.values():
        about = method.summary if method.installed else f"{method.summary}; not installed"
        table.add_row(f"[{method.colour}]●[/] {method.name}", about, _defaults(method))
    yield table
    bases = Table("base", "", "hyperparameters", title="Base optimizers", title_justify="left")
    for base_name, base in BASES.items():
        hyperparameters = [f"{option.name}={option.default}" for option in inspect.signature(base).parameters.values()]
        bases.add_row(base_name, _first_line(base), ", ".join(hyperparameters))
    yield bases


def _options_table(method: Method) -> Table:
    table = Table("option", "default", "", title=f"{method.name}: {method.summary}", title_justify="left")
    about = _argument_docs(method)
    for option, default in method.options().items():
        table.add_row(option, _default(default), about.get(option, ""))
    return table


def _argument_docs(method: Method) -> dict[str, str]:
    """The docstring's text on each argument; where it refers to POGO, that of POGO."""
    documented = _arguments(inspect.getdoc(method.make) or "")
    shared = _arguments(inspect.getdoc(oo.POGO) or "")
    return {name: shared.get(name, text) if text == "see POGO." else text for name, text in documented.items()}


def _arguments(doc: str) -> dict[str, str]:
    section = re.search(r"^Args:\n(.*?)(?:\n\S|\Z)", doc, re.S | re.M)
    if section is None:
        return {}
    entries = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", section[1] + "\n", re.S | re.M)
    return {name: re.sub(r"`+|:\w+:(?=`)", "", " ".join(text.split())) for name, text in entries}


def _defaults(method: Method) -> str:
    known = {name: value for name, value in method.options().items() if name not in SHARED}
    return ", ".join(name if _default(value) == "–" else f"{name}={_default(value)}" for name, value in known.items())


def _default(value: object) -> str:
    if value is None or value is inspect.Parameter.empty:
        return "–"
    return type(value).__name__ if isinstance(value, oo.Base) else str(value)


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0]
