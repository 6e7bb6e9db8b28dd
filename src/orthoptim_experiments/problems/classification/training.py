"""The training of an image classifier, as a problem of the harness: batch by batch, measured, resumed exactly."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

import orthoptim as oo
from orthoptim.tensors import full
from orthoptim.views import View
from orthoptim_experiments.harness import ranks, sharding
from orthoptim_experiments.harness.clock import synchronize
from orthoptim_experiments.harness.experiment import Config, Outcome, Problem
from orthoptim_experiments.problems.datasets import BatchLoader, Dataset, Images, derive_seed, normalize

TEST_BATCH = 500


def split_images(config: Config, data: Dataset) -> tuple[Images, Images]:
    """Images to train on and to test on; in a sweep the latter are the last ``held_out`` of the former."""
    train, held_out = data.train.first(config["train_images"]), config.get("held_out", 0)
    if not held_out:
        return train, data.test.first(config["test_images"])
    return train.first(len(train.labels) - held_out), Images(train.pixels[-held_out:], train.labels[-held_out:])


class Training(Problem):
    """A network, its data, and two optimizers: one for the weights under study, one of its own for all others.

    All draws are functions of the seed and of the step, see :mod:`orthoptim_experiments.problems.datasets.draws`:
    neither an evaluation nor anything else that draws random numbers changes the course of a training, and resuming is
    exact.

    Args:
        config: with ``epochs``, ``evaluations`` (per epoch) and ``amp``: whether the forward pass is computed in
            bfloat16 (autocast). Weights, gradients and optimizers stay float32, so that constrained weights are as
            feasible as without.
        model: the network, on its device.
        weights: patterns of the parameters under study, with their views.
        constrained: whether they are orthogonal, and their distance is reported.
        others: the optimizer of all other parameters.
        loader: batches to train on.
        test: images to evaluate on.
        seed: of dropout.

    Where several ranks train together, the loader gives each its part of a batch; losses are those of whole batches.
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        weights: Mapping[str, str],
        constrained: bool,
        others: torch.optim.Optimizer,
        loader: BatchLoader,
        test: Images,
        seed: int,
    ) -> None:
        self.model, self.weights, self.constrained = model, weights, constrained
        self.others, self.loader, self.test = others, loader, test
        self.seed, self.amp = seed, bool(config["amp"])
        self.device, self.dtype = test.labels.device, next(model.parameters()).dtype
        self.budget = math.ceil(config["epochs"] * loader.steps_per_epoch)
        self.stride: int = max(1, loader.steps_per_epoch // config["evaluations"])
        self._last_loss: Tensor | float = 0.0
        self._since = _Measured()

    def parameters(self) -> list[dict[str, Any]]:
        """The weights under study, as param groups with their views."""
        return oo.param_groups(self.model, self.weights, rest=None)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """See :meth:`Problem.begin`."""
        super().begin(optimizer)
        self.optimizers = [optimizer, self.others]
        for member in self.optimizers:
            for group in member.param_groups:
                group["initial_lr"] = group["lr"]

    # What a network adds

    label_smoothing: ClassVar[float] = 0.0
    reduction: ClassVar[str] = "mean"

    def prepare_step(self) -> None:
        """Set what depends on the step: learning rates, what is frozen."""

    # The problem

    @property
    def epoch(self) -> float:
        """Epochs trained so far."""
        return self.step / self.loader.steps_per_epoch

    def due(self) -> bool:
        """Several times an epoch, and at its end."""
        return self.step % self.loader.steps_per_epoch % self.stride == 0

    def outcome(self) -> Outcome | None:
        """See :meth:`Problem.outcome`."""
        if not math.isfinite(self._last_loss):
            return Outcome("diverged", f"the loss is {float(self._last_loss):.3g} after {self.step} steps")
        return Outcome("budget") if self.step >= self.budget else None

    def advance(self) -> None:
        """Train on one batch."""
        begin = self._now()
        self.prepare_step()
        self.model.train()
        images, labels = self.loader.next()
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(derive_seed(self.seed, "dropout", self.step))
            with self._autocast():
                logits = self.model(images.to(self.dtype))
        smoothing, reduction = self.label_smoothing, self.reduction
        loss = functional.cross_entropy(logits.to(self.dtype), labels, label_smoothing=smoothing, reduction=reduction)
        if reduction == "mean":
            loss = loss * (len(labels) / self.loader.batch_size)  # of the whole batch, of which this may be a part
        torch.autograd.backward(loss)
        loss = ranks.sum_gradients(self.model.parameters(), loss.detach())
        before = self.stepping.elapsed
        with self.stepping:
            self.optimizer.step()
        self.others.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.step += 1
        self._last_loss = loss
        images_seen = self.loader.batch_size
        total = loss if reduction == "sum" else loss * images_seen
        self._since.add(
            total, images_seen, seconds=self._now() - begin, optimizer_seconds=self.stepping.elapsed - before
        )

    def evaluate(self) -> dict[str, float]:
        """The values of a record; those of the training are over the batches since the last evaluation.

        ``loss`` and ``accuracy`` are those of the test images, ``distance`` and ``max_distance`` the mean and the
        maximum of ‖XXᴴ − I‖_F/√p over all matrices, ``optimizer_share`` the part of the training time in the
        optimizer of the weights under study.
        """
        accuracy, loss = self.test_with(self.model)
        record = {"loss": loss, "accuracy": accuracy, "epoch": self.epoch} | self._since.record()
        self._since = _Measured()
        return record | self._distances()

    @torch.no_grad()
    def test_with(self, predict: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """Accuracy and cross-entropy, on the test images, of a function from normalised images to logits."""
        self.model.eval()
        correct, loss = torch.zeros(2, dtype=self.dtype, device=self.device)
        for batch in ranks.local_batches(len(self.test.labels), TEST_BATCH):
            pixels, labels = self.test.pixels[batch], self.test.labels[batch]
            with self._autocast():
                images = normalize(pixels, self.loader.mean, self.loader.std).to(self.dtype)
                logits = predict(images).to(self.dtype)  # 16 bits, if mixed
            correct += (logits.argmax(1) == labels).sum()
            loss += functional.cross_entropy(logits, labels, reduction="sum")
        accuracy, mean_loss = (
            ranks.all_reduce_sum(torch.stack((correct, loss))).double() / len(self.test.labels)
        ).tolist()
        return accuracy, mean_loss

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Problem.state_dict`."""
        return {
            "step": self.step,
            **sharding.full_state(self.model, self.optimizers),
            "loader": self.loader.state_dict(),
            "measured": self._since.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Problem.load_state_dict`."""
        self.step = state["step"]
        sharding.load_full_state(self.model, self.optimizers, state)
        self.loader.load_state_dict(state["loader"])
        self._since = _Measured(**state["measured"])

    def _distances(self) -> dict[str, float]:
        if not self.constrained:
            return {}
        normed = [
            full(oo.distance(param, view=group["view"])).flatten()
            / View.of(group["view"]).parts(param.shape)[0].p ** 0.5
            for group in self.parameters()
            for param in group["params"]
        ]
        distances = torch.cat(normed)
        return {"distance": distances.mean().item(), "max_distance": distances.max().item()}

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.amp)

    def _now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()


class _Measured:
    """Sums over the batches since the last evaluation."""

    def __init__(
        self, loss: float | Tensor = 0.0, images: int = 0, seconds: float = 0.0, optimizer_seconds: float = 0.0
    ) -> None:
        self.loss, self.images = loss, images
        self.seconds, self.optimizer_seconds = seconds, optimizer_seconds

    def add(self, loss: Tensor, images: int, *, seconds: float, optimizer_seconds: float) -> None:
        self.loss = self.loss + loss
        self.images += images
        self.seconds += seconds
        self.optimizer_seconds += optimizer_seconds

    def record(self) -> dict[str, float]:
        if not self.images:
            return {}
        return {
            "train_loss": float(self.loss) / self.images,
            "optimizer_share": self.optimizer_seconds / self.seconds,
            "images_per_second": self.images / self.seconds,
        }

    def state_dict(self) -> dict[str, float | int]:
        return {
            "loss": float(self.loss),
            "images": self.images,
            "seconds": self.seconds,
            "optimizer_seconds": self.optimizer_seconds,
        }
