"""What a step of each method costs at the paper's sizes, and which share of an epoch that is.

Where a laptop trains for minutes the network hides the optimizer. Here every method steps the network's own parameters
at the paper's size, in turns, with gradients drawn once; forward and backward pass are timed on a part of a batch.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.harness import methods as known_methods
from orthoptim_experiments.harness.clock import Clock
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.methods import PAPER
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.problems.circuits.model import SquaredUnitaryCircuit
from orthoptim_experiments.problems.cnn.training import CONVOLUTIONS
from orthoptim_experiments.problems.cnn.training import make_model as make_cnn
from orthoptim_experiments.problems.vit.training import ATTENTION
from orthoptim_experiments.problems.vit.training import make_model as make_vit

METHODS = (*PAPER, "POGO-strict", "Adam", "geoopt", "torch-orthogonal")
KEPT = 2 << 30
"""Bytes of parameters of all methods together, up to which all are kept: more are built anew for each turn."""


@dataclass(frozen=True)
class Workload:
    """A network at the paper's size.

    Attributes:
        experiment: its name.
        variant: of the experiment.
        model: makes the network.
        patterns: of the parameters under study.
        batch: draws so many examples, and returns the loss of the network on them.
        part: how many examples the passes are timed on.
        images: that an epoch has.
    """

    experiment: str
    variant: str | None
    model: Callable[[dict[str, Any]], torch.nn.Module]
    patterns: dict[str, str]
    batch: Callable[[torch.nn.Module, int], Tensor]
    part: int
    images: int


@dataclass(frozen=True)
class Cost:
    """What one method costs: seconds of a step, of the passes of a batch, steps of an epoch, epochs of a training."""

    method: str
    step: float
    passes: float
    steps: int
    epochs: float

    @property
    def share(self) -> float:
        """The optimizer's share of an epoch."""
        return self.step / (self.step + self.passes)

    @property
    def training(self) -> float:
        """Seconds that the optimizer takes of the paper's whole training."""
        return self.step * self.steps * self.epochs


def _logits(model: torch.nn.Module, count: int) -> Tensor:
    loss: Tensor = model(torch.randn(count, 3, 32, 32)).square().mean()
    return loss


def _likelihood(model: torch.nn.Module, count: int) -> Tensor:
    assert isinstance(model, SquaredUnitaryCircuit)
    loss: Tensor = -model(torch.randint(model.states, (count, 1, 28, 28), dtype=torch.uint8)).mean()
    return loss


def _cnn(config: dict[str, Any]) -> torch.nn.Module:
    model = make_cnn(tuple(config["widths"]), 0)
    oo.orthogonalize_(model, {CONVOLUTIONS: config["variant"]}, init="random")
    return model


WORKLOADS = {
    "cnn-filters": Workload("cnn", "filters", _cnn, {CONVOLUTIONS: "filters"}, _logits, 50, 50_000),
    "cnn-kernels": Workload("cnn", "kernels", _cnn, {CONVOLUTIONS: "kernels"}, _logits, 50, 50_000),
    "vit": Workload("vit", None, lambda config: make_vit(config, 0), ATTENTION, _logits, 4, 50_000),
    "circuits": Workload(
        "circuits",
        None,
        lambda config: SquaredUnitaryCircuit(28, 28, config["units"], config["states"]),
        {"*": "matrix"},
        _likelihood,
        16,
        57_000,
    ),
}


def measure(
    name: str, rounds: int, scale: str = "paper", tell: Callable[[str], None] = lambda text: None
) -> list[Cost]:
    """The cost of every method that the experiment offers: the least processor time of a few turns."""
    work = WORKLOADS[name]
    experiment = EXPERIMENTS[work.experiment]
    config = configuration(experiment, scale, variant=work.variant)
    offered = {
        method: options
        for method, options in experiment.methods(config).items()
        if method in METHODS and known_methods.find(method).installed
    }
    model = work.model(config)
    passes = _passes(work, model, config["batch_size"], rounds)
    size = sum(p.numel() * p.element_size() for group in _groups(work, model) for p in group["params"])
    kept = size * len(offered) <= KEPT
    steppers: dict[str, Callable[[], float]] = {}
    least: dict[str, float] = {}
    for turn in range(rounds + 1):  # the first allocates and is not counted
        for method, options in offered.items():
            stepper = steppers.get(method) or _stepper(work, model, method, options)
            if kept:
                steppers[method] = stepper
            elif turn:
                stepper()
            seconds = stepper()
            if turn:
                least[method] = min(seconds, least.get(method, seconds))
            tell(f"{name}, turn {turn} of {rounds}: {method} {seconds:.3g} s")
    steps = work.images // config["batch_size"]
    found = [Cost(method, seconds, passes, steps, config["epochs"]) for method, seconds in least.items()]
    return sorted(found, key=lambda cost: cost.step)


def _groups(work: Workload, model: torch.nn.Module) -> list[dict[str, Any]]:
    return oo.param_groups(model, work.patterns, rest=None)


def _stepper(
    work: Workload, model: torch.nn.Module, method: str, options: known_methods.Options
) -> Callable[[], float]:
    """A function that takes a step of a method on a copy of the parameters, and returns its processor time."""
    generator = torch.Generator().manual_seed(0)
    groups = [
        {**group, "params": [torch.nn.Parameter(param.detach().clone()) for param in group["params"]]}
        for group in _groups(work, model)
    ]
    for param in (param for group in groups for param in group["params"]):
        param.grad = 1e-3 * torch.randn(param.shape, dtype=param.dtype, generator=generator)
    optimizer = known_methods.find(method).build(groups, options)
    clock = Clock(torch.device("cpu"))

    def step() -> float:
        before = clock.processor
        with clock:
            optimizer.step()
        return clock.processor - before

    return step


def _passes(work: Workload, model: torch.nn.Module, batch_size: int, rounds: int) -> float:
    """Seconds of the forward and the backward pass of a batch, from those of a part of it."""

    def once() -> float:
        loss = work.batch(model, work.part)
        begin = time.process_time()
        torch.autograd.backward(loss)
        backward = time.process_time() - begin
        begin = time.process_time()
        work.batch(model, work.part)
        return backward + time.process_time() - begin

    seconds = min(once() for _ in range(max(2, rounds)))
    for param in model.parameters():
        param.grad = None
    return seconds * batch_size / work.part


def table(costs: Sequence[Cost]) -> Iterator[list[str]]:
    """The rows of the table: method, step, in units of POGO's, share of an epoch, time of the whole training."""
    unit = next((cost.step for cost in costs if cost.method == "POGO"), costs[0].step)
    for cost in costs:
        total = cost.training
        words = (
            f"{total / 3600:.2f} h" if total >= 3600 else f"{total / 60:.1f} min" if total >= 60 else f"{total:.1f} s"
        )
        yield [cost.method, f"{cost.step:.4g} s", f"{cost.step / unit:.3g}", f"{cost.share:.1%}", words]
