"""A recurrent network, trained on sequences: one optimizer for what stands for W, Adam for all else."""

import torch
from torch import Tensor, nn
from torch.nn import functional

import orthoptim as oo
from orthoptim_experiments.harness.experiment import Config
from orthoptim_experiments.problems.copying.contenders import NETWORKS
from orthoptim_experiments.problems.copying.data import PROBLEMS, Sequences
from orthoptim_experiments.problems.copying.model import LSTM, Recurrence
from orthoptim_experiments.problems.model_training import ModelTraining


def network(config: Config, method: str, inputs: int, outputs: int, seed: int) -> LSTM | Recurrence:
    """The network of a method; a complex state has half as many entries, so as many real numbers."""
    kind, dtype = NETWORKS[method.partition(":")[0]]
    if kind == "lstm":
        return LSTM(inputs, config["units"], outputs)  # the harness has seeded torch
    units = config["units"] // 2 if dtype.is_complex else config["units"]
    return Recurrence(inputs, units, outputs, kind, dtype, torch.Generator().manual_seed(seed))


def loss(model: nn.Module, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Cross-entropy, the mean over all outputs that have a target; and the logits."""
    logits = model(sequences.inputs, len(sequences.targets))
    return functional.cross_entropy(logits.flatten(0, 1), sequences.targets.flatten()), logits


class RecurrentTraining(ModelTraining):
    """Minimise the loss over sequences.

    Args:
        config: see the experiment.
        method: its name.
        seed: of the start and of the sequences.
    """

    def __init__(self, config: Config, method: str, seed: int) -> None:
        self.data = PROBLEMS[config["variant"]](config)
        model = network(config, method, self.data.inputs, self.data.outputs, seed)
        super().__init__(config, model, model.studied(), seed)

    def batch_loss(self) -> Tensor:
        """See :meth:`ModelTraining.batch_loss`."""
        return loss(self.model, self.data.batch(self.generator))[0]

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy (of the ten symbols, or of classes) on what is held out, and the distance of W.

        ``excess`` is the loss in units of that of a network that remembers nothing.
        """
        held_out = self.data.held_out()
        value, logits = loss(self.model, held_out)
        values = {
            "loss": float(value),
            "excess": float(value) / self.data.baseline,
            "accuracy": self.data.recalled(logits, held_out.targets),
        }
        if isinstance(self.model, Recurrence):
            values["distance"] = float(oo.distance(self.model.weight()))
        return values
