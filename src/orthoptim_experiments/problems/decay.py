"""Learning rates that fall linearly to zero: normalised steps do not shrink else."""

import torch

from orthoptim_experiments.harness.experiment import Problem


class Decaying(Problem):
    """A problem that calls :meth:`decay` before each step."""

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """See :meth:`Problem.begin`."""
        super().begin(optimizer)
        self.rates = [group["lr"] for group in optimizer.param_groups]

    def decay(self) -> None:
        """Set the learning rates of the step to come."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * (1 - self.step / self.budget)
