"""Methods and experiments of others: from a module or file that is named, or from an installed package.

A plugin is a module with ``METHODS``, an iterable of :class:`Method`, or ``EXPERIMENTS``, one of :class:`Experiment`,
or both. An installed package names such a module under the entry point group ``orthoptim.experiments``.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from orthoptim_experiments.harness.experiment import Experiment
from orthoptim_experiments.harness.methods import METHODS, Method
from orthoptim_experiments.problems import EXPERIMENTS

GROUP = "orthoptim.experiments"


def register(methods: Iterable[Method] = (), experiments: Iterable[Experiment] = ()) -> None:
    """Make methods and experiments known by their names; a method of ours keeps its own.

    Raises:
        ValueError: if a name is taken, or is none.
    """
    for method in methods:
        if not method.name or ":" in method.name or "," in method.name:
            raise ValueError(f"{method.name!r} is no name for a method: it is empty, or has a colon or a comma")
        known = METHODS.get(method.name)
        if known is not None and known.defaults is None and known is not method:
            raise ValueError(f"there is a method {method.name!r} already")
        if known is None and method.defaults is None:
            raise ValueError(f"the method {method.name!r} has no defaults: the options that it is run with")
        METHODS[method.name] = method
    for experiment in experiments:
        namesake = EXPERIMENTS.get(experiment.name)
        if namesake is not None and type(namesake).__module__.startswith("orthoptim_experiments."):
            raise ValueError(f"there is an experiment {experiment.name!r} already")
        EXPERIMENTS[experiment.name] = experiment


def load(plugin: str) -> None:
    """Load a plugin: a file ``my_module.py``, or the name of a module.

    Raises:
        ValueError: in one line, if it cannot be loaded or holds nothing.
    """
    try:
        module = _from_file(Path(plugin)) if plugin.endswith(".py") else importlib.import_module(plugin)
    except Exception as error:  # whatever the code of others raises
        raise ValueError(f"cannot load the plugin {plugin}: {type(error).__name__}: {error}") from None
    methods, experiments = getattr(module, "METHODS", ()), getattr(module, "EXPERIMENTS", ())
    if not methods and not experiments:
        raise ValueError(f"the plugin {plugin} has neither METHODS nor EXPERIMENTS")
    register(methods, experiments)


def load_installed() -> None:
    """Load the plugins of installed packages."""
    for entry in entry_points(group=GROUP):
        load(entry.value)


def _from_file(path: Path) -> ModuleType:
    name = f"orthoptim_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look it up there
    spec.loader.exec_module(module)
    return module
