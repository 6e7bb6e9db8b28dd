"""The contract that an experiment fulfils.

The runner knows nothing of matrices or models: it asks an :class:`Experiment` for a configuration, its methods and a
:class:`Problem` for each seed, gives the problem an optimizer, and calls ``advance`` until there is an ``outcome``.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch

from orthoptim.tensors import full
from orthoptim_experiments.harness.attachments import Picture
from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.clock import Clock
from orthoptim_experiments.harness.methods import METHODS, Options, Params
from orthoptim_experiments.harness.panels import PAPER, Panel, Target
from orthoptim_experiments.harness.records import Run, Status

Config = dict[str, Any]
"""Plain values that determine the results of an experiment, except method and seed."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Outcome(NamedTuple):
    """How a trial ended."""

    status: Status
    message: str = ""


def left_manifold(optimizer: torch.optim.Optimizer, step: int) -> Outcome | None:
    """Diverged, if a matrix had to be rescued: nobody writes to parameters, so its own steps left the manifold."""
    rescued = sum(int(full(state["rescued"]).sum()) for state in optimizer.state.values() if "rescued" in state)
    if rescued == 0:
        return None
    return Outcome(
        "diverged", f"{rescued} steps of a matrix had to be rescued from far off the manifold by step {step}"
    )


class Problem(ABC):
    """A problem for one optimizer, with its progress.

    Attributes:
        step: how often it has advanced.
        budget: how often it may.
        stepping: counts the time of the optimizer's own steps.
    """

    step: int = 0
    budget: int
    optimizer: torch.optim.Optimizer
    stepping: Clock

    @abstractmethod
    def parameters(self) -> Params:
        """The parameters or param groups of the optimizer."""

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the optimizer; the clock does not run yet."""
        self.optimizer = optimizer
        self.stepping = Clock(optimizer.param_groups[0]["params"][0].device)

    @abstractmethod
    def advance(self) -> None:
        """Take one step (a batch, an iteration) and count it; this alone is timed."""

    @abstractmethod
    def due(self) -> bool:
        """Whether to evaluate and record now; a function of the configuration and the step, so that runs agree."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Measure, untimed; it must not change what follows."""

    @abstractmethod
    def outcome(self) -> Outcome | None:
        """Whether and how the trial has ended; asked after every step, untimed."""

    def pictures(self) -> dict[str, bytes]:
        """Images of what was found, by name, as PNG files; asked once, untimed, of a trial that did not diverge."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state that an exact resumption needs, as tensors and plain values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, on a problem that has begun and not advanced."""


@dataclass(frozen=True)
class Scale:
    """The size of an experiment.

    Attributes:
        summary: one line for the help.
        seeds: how many.
        sizes: what goes into the configuration.
    """

    summary: str
    seeds: int
    sizes: Mapping[str, Any] = field(default_factory=dict)


class Experiment(ABC):
    """One experiment. Subclasses set the attributes.

    Attributes:
        name: in commands and file names.
        title: of the page.
        about: a description, as paragraphs; ``{budget}`` stands for that size of the run it is shown with.
        scales: by name: ``tiny`` (seconds, for tests), ``laptop`` (minutes), ``paper``.
        variants: by name, with one line each; the first is the default.
        length: the size that says only how long a trial may go on, if there is one: a longer run then continues the
            trials of a shorter one. There is none where the learning rate falls to zero at the end.
        parallel: whether several processes can train together, each on its part of a batch of ``batch_size`` examples.
        dtypes: those it can be run in; the first is the default.
        default_methods: those that take part if none are asked for.
        claims: what is said about it.
        panels: of its figure; on the report page each quantity is a chart.
        columns: of the records, whose last values are in the report's table.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    scales: ClassVar[Mapping[str, Scale]]
    variants: ClassVar[Mapping[str, str]] = {}
    length: ClassVar[str] = ""
    parallel: ClassVar[bool] = False
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    default_methods: ClassVar[tuple[str, ...]]
    claims: ClassVar[tuple[Claim, ...]] = ()
    panels: ClassVar[tuple[Panel, ...]] = PAPER
    columns: ClassVar[tuple[str, ...]] = ("projected_gap", "gap", "distance")

    def description(self, config: Config) -> str:
        """The description, with the sizes of a configuration in it."""

        def size(found: re.Match[str]) -> str:
            value = config.get(found[1], found[0])
            return f"{value:g}" if isinstance(value, float) else str(value)

        return re.sub(r"\{(\w+)\}", size, self.about.strip())

    @abstractmethod
    def methods(self, config: Config) -> dict[str, Options]:
        """The methods that can take part, and their hyperparameters."""

    def offered(self, config: Config) -> dict[str, Options]:
        """The methods that can take part: its own, and those of plugins with their defaults."""
        added = {name: method.defaults for name, method in METHODS.items() if method.defaults is not None}
        return {**added, **self.methods(config)}

    @abstractmethod
    def problem(self, config: Config, method: str, seed: int) -> Problem:
        """The problem of a seed, the same for every method but for what its name demands (a precision)."""

    def prepare(self, config: Config) -> None:  # noqa: B027  (most need nothing)
        """Get what all trials need, before the first begins.

        Raises:
            ValueError: if it cannot be had; the message is one line for the user.
        """

    def sweep_sizes(self, config: Config) -> dict[str, Any]:
        """What a sweep over hyperparameters adds to the configuration: what it is to be validated on."""
        return {}

    def arithmetic(self, config: Config, method: str) -> AbstractContextManager[Any]:
        """The context in which a method advances."""
        return nullcontext()

    def target(self, config: Config) -> Target | None:
        """The value that trials are timed to: by default the projected gap at which they stop."""
        return Target("projected_gap", config["tolerance"]) if "tolerance" in config else None

    def attachments(self, run: Run) -> Sequence[Picture]:
        """Images for the report page, beyond what it shows of every experiment."""
        return ()


def configuration(
    experiment: Experiment,
    scale: str,
    *,
    variant: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    threads: int = 1,
    nproc: int = 1,
    sharded: bool = False,
    sizes: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of a run; ``sizes`` replace those of the scale.

    ``nproc`` is part of it only if there are several processes, whose sums round differently.
    """
    config: Config = {"experiment": experiment.name, "scale": scale, **experiment.scales[scale].sizes, **(sizes or {})}
    if experiment.variants:
        config["variant"] = variant or next(iter(experiment.variants))
    config |= {"dtype": dtype or experiment.dtypes[0], "device": device, "threads": threads}
    if nproc > 1:
        config["nproc"] = nproc
    if sharded:
        config["sharded"] = True
    return config


def is_paper_scale(experiment: Experiment, config: Config) -> bool:
    """Whether all sizes are the paper's, whatever the scale is called.

    A shorter training or a narrower network with ``--scale paper`` is not.
    """
    paper = experiment.scales.get("paper")
    return paper is not None and all(config.get(name) == size for name, size in paper.sizes.items())


def run_id(config: Config) -> str:
    """Ten digits that stand for a configuration, and change with anything in it.

    Example:
        >>> run_id({"n": 1, "p": 2}) == run_id({"p": 2, "n": 1}) != run_id({"n": 1, "p": 3})
        True
    """
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:10]
