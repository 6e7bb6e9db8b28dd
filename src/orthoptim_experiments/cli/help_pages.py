"""The pages that are made of what there is: on an experiment, on the methods."""

import inspect
import re
from collections.abc import Iterator

from rich.table import Table

import orthoptim as oo
from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.experiment import Experiment, configuration
from orthoptim_experiments.harness.methods import BASES, METHODS, Method

SHARED = ("view", "side", "maximize", "compile")
"""Options that every orthoptimizer has."""


def of(experiment: Experiment) -> str:
    """The description of an experiment, with its scales, variants and methods."""
    config = configuration(experiment, "paper")
    options = experiment.methods(config)
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
    return "\n\n".join([f"{experiment.title}.", experiment.description(config), *parts, usual])


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
