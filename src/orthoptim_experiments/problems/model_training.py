"""The training of a small model: one optimizer for the weights under study, Adam for all others."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from orthoptim_experiments.harness.experiment import Config, Outcome, Problem


class ModelTraining(Problem):
    """Minimise a loss over batches that are drawn anew for each step.

    Args:
        config: with ``steps``, ``stride`` between records, and ``rest_lr``, the learning rate of Adam.
        model: the model.
        studied: its parameters under study.
        seed: of the batches.
    """

    def __init__(self, config: Config, model: nn.Module, studied: list[nn.Parameter], seed: int) -> None:
        self.config, self.model, self.studied, self.budget = config, model, studied, config["steps"]
        self.generator = torch.Generator().manual_seed(seed)
        taken = {id(param) for param in studied}
        rest = [param for param in model.parameters() if id(param) not in taken]
        self.others = torch.optim.Adam(rest, lr=config["rest_lr"])
        self.last_loss = torch.zeros(())

    @abstractmethod
    def batch_loss(self) -> Tensor:
        """The loss of the next batch, drawn from ``self.generator``."""

    def parameters(self) -> list[nn.Parameter]:
        """Those under study."""
        return self.studied

    def advance(self) -> None:
        """One batch."""
        self.optimizer.zero_grad()
        self.others.zero_grad()
        loss = self.batch_loss()
        torch.autograd.backward(loss)
        with self.stepping:
            self.optimizer.step()
        self.others.step()
        self.last_loss = loss.detach()
        self.step += 1

    def due(self) -> bool:
        """At the beginning, every ``stride`` steps, and at the end."""
        return self.step % self.config["stride"] == 0 or self.step == self.budget

    def outcome(self) -> Outcome | None:
        """See :meth:`Problem.outcome`."""
        if not math.isfinite(self.last_loss):
            return Outcome("diverged", f"the loss is {float(self.last_loss):.3g} after {self.step} steps")
        return Outcome("budget") if self.step >= self.budget else None

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Problem.state_dict`."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "generator": self.generator.get_state(),
            "optimizers": [self.optimizer.state_dict(), self.others.state_dict()],
            "last_loss": self.last_loss,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Problem.load_state_dict`."""
        self.model.load_state_dict(state["model"])
        self.generator.set_state(state["generator"])
        for optimizer, saved in zip((self.optimizer, self.others), state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.last_loss = state["step"], state["last_loss"]
