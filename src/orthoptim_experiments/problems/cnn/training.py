"""The training of the convolutional network: the recipe of airbench with any method for the convolutions."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import orthoptim as oo
from orthoptim.literals import Init
from orthoptim_experiments.harness import ranks, sharding
from orthoptim_experiments.harness.experiment import DTYPES, Config
from orthoptim_experiments.problems.classification.training import Training, split_images
from orthoptim_experiments.problems.cnn.model import WHITENING_IMAGES, ConvNet
from orthoptim_experiments.problems.datasets import BatchLoader, generator, load, normalize

CONVOLUTIONS = "groups.*.conv?.weight"

# A Dirac filter is a unit vector, and those of a layer are orthonormal; but most of its kernels are zero, and have no
# nearest orthogonal matrix.
INITS: dict[str, Init] = {"filters": "project", "kernels": "random"}
INIT_NAMES = ("auto", "project", "random")

BIAS_LR = 0.053
HEAD_LR = 0.67
MOMENTUM = 0.85
DECAY_PER_IMAGE = 2e-6  # 0.004 for a batch of 2000; over the learning rate, as torch multiplies it by that
WHITENING_EPOCHS = 3


class CnnTraining(Training):
    """The recipe of airbench with any method for the convolutions.

    The sum of the losses of a batch is minimised, so that a learning rate is one per image whatever the batch size.
    Biases and head are trained by SGD with Nesterov momentum. All learning rates fall linearly to zero; that of the
    whitening bias within three epochs.

    Args:
        config: with ``dataset``, ``train_images`` and ``test_images``, ``widths``, ``batch_size``,
            ``variant`` (the constraint), ``init`` (``"project"``, ``"random"`` or ``"auto"``, see :data:`INITS`),
            ``dtype``, ``device``, ``sharded`` (if not, it may be left out) and what :class:`Training` needs.
        constrained: whether the convolutions start orthogonal; otherwise they start as airbench's do.
        seed: of all draws.
    """

    label_smoothing = 0.2
    reduction = "sum"

    def __init__(self, config: Config, constrained: bool, seed: int) -> None:
        data, device, batch_size = load(config["dataset"]), config["device"], config["batch_size"]
        train, test = split_images(config, data)
        augmented: dict[str, Any] = {"alternate_flips": True, "pad": 2, "seed": seed}
        part = ranks.local_slice(batch_size)
        loader = BatchLoader(train.to(device), batch_size, data.mean, data.std, **augmented, part=part)
        model = make_model(tuple(config["widths"]), seed).to(DTYPES[config["dtype"]])
        model.whiten_by_(normalize(train.pixels[:WHITENING_IMAGES], data.mean, data.std))
        view = config["variant"] if constrained else "filters"
        if constrained:
            start: Init = INITS[view] if config["init"] == "auto" else config["init"]
            oo.orthogonalize_(model, {CONVOLUTIONS: view}, init=start, generator=generator(seed, "orthogonal"))
        model.to(device)
        ranks.broadcast_parameters(model)
        if config.get("sharded"):
            sharding.shard(model, blocks=[*model.groups.children()][:-1])  # the last, a pooling, has no parameters
        others = _others(model, batch_size)
        super().__init__(config, model, {CONVOLUTIONS: view}, constrained, others, loader, test.to(device), seed)
        self.whitening_bias = model.whiten.get_parameter("bias")
        self.whitening_steps = math.ceil(WHITENING_EPOCHS * loader.steps_per_epoch)

    def prepare_step(self) -> None:
        """Learning rates fall linearly to zero; the whitening bias is frozen when its own has."""
        self.whitening_bias.requires_grad_(self.step < self.whitening_steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                steps = self.whitening_steps if group.get("whitening") else self.budget
                group["lr"] = group["initial_lr"] * max(0.0, 1 - self.step / steps)

    def evaluate(self) -> dict[str, float]:
        """A record; that of the end has the accuracy with test-time augmentation, too."""
        record = super().evaluate()
        if self.step >= self.budget:
            record["tta_accuracy"] = self.test_with(self.augmented)[0]
        return record

    def augmented(self, images: Tensor) -> Tensor:
        """Logits averaged over mirror images, and over shifts by one pixel up and left, and down and right."""

        def mirrored(views: Tensor) -> Tensor:
            mean: Tensor = (self.model(views) + self.model(views.flip(-1))) / 2
            return mean

        height, width = images.shape[-2:]
        padded = functional.pad(images, (1,) * 4, mode="reflect")
        shifted = mirrored(padded[..., :height, :width]) + mirrored(padded[..., 2:, 2:])
        return mirrored(images) / 2 + shifted / 4


def make_model(widths: tuple[int, int, int], seed: int) -> ConvNet:
    """The network as its seed draws it, whatever was drawn before."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return ConvNet(widths)


def _others(model: ConvNet, batch_size: int) -> torch.optim.Optimizer:
    """SGD for biases and head; weight decay is decoupled from the learning rate, as in airbench."""
    decay = DECAY_PER_IMAGE * batch_size
    biases = [param for name, param in model.named_parameters() if "norm" in name and param.requires_grad]
    groups = [
        {"params": [model.whiten.bias], "lr": BIAS_LR, "weight_decay": decay / BIAS_LR, "whitening": True},
        {"params": biases, "lr": BIAS_LR, "weight_decay": decay / BIAS_LR, "whitening": False},
        {"params": [model.head.weight], "lr": HEAD_LR, "weight_decay": decay / HEAD_LR, "whitening": False},
    ]
    return torch.optim.SGD(groups, momentum=MOMENTUM, nesterov=True)
