"""The mixture of experts, trained on the text of Python's help()."""

import math

import torch
from torch import Tensor
from torch.nn import functional

import orthoptim as oo
from orthoptim_experiments.harness.experiment import Config
from orthoptim_experiments.problems.experts.model import ExpertModel
from orthoptim_experiments.problems.model_training import ModelTraining
from orthoptim_experiments.problems.rotations import text


class ExpertTraining(ModelTraining):
    """Minimise the cross-entropy of the next symbol; the experts' weights are under study.

    Args:
        config: see the experiment.
        seed: of the start and of the batches.
    """

    def __init__(self, config: Config, seed: int) -> None:
        torch.manual_seed(seed)
        model = ExpertModel(config["length"], config["embedding"], config["experts"], config["p"], config["choices"])
        super().__init__(config, model, [model.experts.up, model.experts.down], seed)
        self.train, _, test = text.split(text.corpus(), config.get("validation", False))
        self.test = text.windows(test, config["test_windows"], config["length"])

    def batch_loss(self) -> Tensor:
        """See :meth:`ModelTraining.batch_loss`."""
        return self._loss(text.batch(self.train, self.config["batch"], self.config["length"], self.generator))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss and perplexity on the test text (in a sweep: the validation text), and the largest distance."""
        loss = float(self._loss(self.test))
        distances = torch.cat([oo.distance(param).flatten() for param in self.studied])
        return {
            "loss": loss,
            "perplexity": math.exp(loss),
            "distance": float(distances.mean()),
            "max_distance": float(distances.max()),
        }

    def _loss(self, symbols: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(symbols[:, :-1]), symbols[:, -1])
