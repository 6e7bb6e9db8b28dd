"""The paper's experiments, and what it takes to compare methods and problems of your own.

Nothing is imported until it is used: ``import orthoptim_experiments`` costs no torch.

Example:
    >>> from orthoptim_experiments import run
    >>> records = run("pca", ["POGO", "RGD"], seeds=1, scale="tiny", out=None)
    >>> [(trial.method, trial.status) for trial in records.trials]
    [('POGO', 'converged'), ('RGD', 'converged')]
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthoptim_experiments.api import run
    from orthoptim_experiments.harness.claims import Claim
    from orthoptim_experiments.harness.experiment import Config, Experiment, Outcome, Problem, Scale
    from orthoptim_experiments.harness.methods import Method
    from orthoptim_experiments.harness.record_reader import load
    from orthoptim_experiments.problems.matrix import MatrixProblem

_PLACES = {
    "run": "api",
    "Claim": "harness.claims",
    **dict.fromkeys(("Config", "Experiment", "Outcome", "Problem", "Scale"), "harness.experiment"),
    "Method": "harness.methods",
    "load": "harness.record_reader",
    "MatrixProblem": "problems.matrix",
}

__all__ = [
    "Claim",
    "Config",
    "Experiment",
    "MatrixProblem",
    "Method",
    "Outcome",
    "Problem",
    "Scale",
    "load",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
