"""Lightning: a callback that watches how far orthogonal parameters are from the manifold."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from orthoptim.integrations.watching import Action, DriftWatch
from orthoptim.validation import check_positive_integer


class DriftMonitor(Callback):  # type: ignore[misc]
    """Log ``drift()`` of every orthoptimizer of a run, and act if a matrix is too far from orthonormal.

    Nothing else is needed: return an orthoptimizer from ``configure_optimizers``; checkpoints, gradient clipping, DDP
    and the precision plugins work as for any optimizer of torch.

    Args:
        every_n_steps: how often to measure, which waits for the device; by default as often as the trainer logs.
        limit: the largest distance ‖XXᴴ − I‖_F that is fine.
        action: ``"warn"``, ``"stop"`` (end training after this step) or ``"project"`` (replace the matrices of the
            group by the nearest orthonormal ones). All of them warn.
        per_parameter: log each parameter rather than each group.

    Example:
        ``Trainer(callbacks=[DriftMonitor(limit=1e-3, action="stop")])``
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        *,
        limit: float = 1e-3,
        action: Action = "warn",
        per_parameter: bool = False,
    ) -> None:
        if every_n_steps is not None:
            check_positive_integer("every_n_steps", every_n_steps)
        self.every_n_steps = every_n_steps
        self.watch = DriftWatch(limit, action, per_parameter)
        self._last_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from where a resumed run starts."""
        self._last_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure when it is time; batches that only accumulate gradients are not steps."""
        interval = self.every_n_steps or max(trainer.log_every_n_steps, 1)
        if trainer.global_step == self._last_step or trainer.global_step % interval:
            return
        self._last_step = trainer.global_step
        self._measure(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure once more, so that the last value belongs to the final weights."""
        if trainer.global_step != self._last_step:
            self._measure(trainer)

    def _measure(self, trainer: Trainer) -> None:
        many = len(trainer.optimizers) > 1
        for index, optimizer in enumerate(trainer.optimizers):
            prefix = f"drift/optimizer{index}/" if many else "drift/"
            values = {prefix + key: float(value) for key, value in self.watch.measure(optimizer).items()}
            trainer.callback_metrics.update({key: torch.tensor(value) for key, value in values.items()})
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)
            if self.watch.exceeded and self.watch.action == "stop":
                trainer.should_stop = True
