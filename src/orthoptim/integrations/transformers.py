"""Hugging Face's Trainer: an optimizer that it builds itself, and a callback that watches the distance."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from orthoptim.base import Base
from orthoptim.groups import Patterns, param_groups
from orthoptim.integrations.watching import Action, DriftWatch
from orthoptim.optim.orthoptimizer import Orthoptimizer
from orthoptim.optim.pogo import POGO


class OptimizerFactory:
    """What ``Trainer(optimizer_cls_and_kwargs=...)`` takes: it is called with the model, sharded or not.

    ``TrainingArguments.weight_decay`` and ``learning_rate`` are not used: give the rates here, and the weight decay of
    the ordinary parameters in ``rest``. Orthogonal parameters have none, as their norm is fixed.

    Example:
        >>> from transformers import Trainer
        >>> kwargs = {"patterns": {"*.query.weight": "matrix"}, "lr": 0.1, "rest": {"lr": 1e-3, "weight_decay": 0.01}}
        >>> chosen = (OptimizerFactory, kwargs)  # Trainer(model, args, optimizer_cls_and_kwargs=chosen, ...)
    """

    def __call__(
        self,
        model: nn.Module,
        *,
        patterns: Patterns,
        lr: float,
        base: Base | None = None,
        rest: Mapping[str, Any] | None = None,
        method: type[Orthoptimizer] = POGO,
        **options: Any,
    ) -> Orthoptimizer:
        """Build the optimizer.

        Args:
            model: the model, whose named weights are orthonormal: call :func:`orthoptim.orthogonalize_` before.
            patterns: which weights are orthogonal, see :func:`orthoptim.param_groups`.
            lr: their learning rate.
            base: their base optimizer.
            rest: options of the ordinary parameters; by default AdamW with its own defaults.
            method: the class of the optimizer.
            **options: further options of the orthogonal groups.
        """
        build: Callable[..., Orthoptimizer] = method  # each method has its own defaults
        return build(param_groups(model, patterns, lr=lr, base=base, rest={"lr": 1e-3, **(rest or {})}, **options))


class DriftCallback(TrainerCallback):  # type: ignore[misc]
    """Add ``drift()`` of the optimizer to the logs, and act if a matrix is too far from orthonormal.

    Reporters such as TensorBoard run before callbacks that are given to ``Trainer``: :meth:`attach` puts this one
    first, so that they see its numbers.

    Args:
        limit: the largest distance ‖XXᴴ − I‖_F that is fine.
        action: ``"warn"``, ``"stop"`` (end training after this step) or ``"project"`` (replace the matrices of the
            group by the nearest orthonormal ones). All of them warn.
        per_parameter: log each parameter rather than each group.
    """

    def __init__(self, limit: float = 1e-3, action: Action = "warn", per_parameter: bool = False) -> None:
        self.watch = DriftWatch(limit, action, per_parameter)
        self._values: dict[str, float] = {}

    def attach(self, trainer: Trainer) -> "DriftCallback":
        """Become the first callback of a trainer."""
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> TrainerControl:
        """Measure where the trainer is about to log, or to end."""
        due = args.logging_steps >= 1 and state.global_step % int(args.logging_steps) == 0
        if due or control.should_log or state.global_step == state.max_steps:
            self._values = {f"drift/{key}": float(value) for key, value in self.watch.measure(optimizer).items()}
            if self.watch.exceeded and self.watch.action == "stop":
                control.should_training_stop = True
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Put the numbers into the logs and into the history that the trainer saves."""
        if logs is not None and self._values:
            logs.update(self._values)
            if state.log_history:
                state.log_history[-1].update(self._values)
