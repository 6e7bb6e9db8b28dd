"""A convolutional network on CIFAR-10 whose filters or kernels are orthogonal."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

import orthoptim as oo
from orthoptim.literals import Init
from orthoptim_experiments.harness import ranks, sharding
from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import DTYPES, Config, Experiment, Scale
from orthoptim_experiments.harness.methods import PAPER, Options
from orthoptim_experiments.problems.classification import judges, shown
from orthoptim_experiments.problems.classification.training import Training, check_batch
from orthoptim_experiments.problems.cnn.model import WHITENING_IMAGES, ConvNet
from orthoptim_experiments.problems.datasets import BatchLoader, generator, load, normalize

CONVOLUTIONS = "groups.*.conv?.weight"

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "filters": {
        "POGO": {"lr": 0.5, "base": "VAdam"},
        "RGD": {"lr": 0.01},
        "RSDM": {"lr": 0.1, "r": 64},
        "Landing": {"lr": 0.001, "base": "SGD", "momentum": 0.6},
        "LandingPC": {"lr": 0.5},
        "SLPG": {"lr": 0.001},
        "Adam": {"lr": 0.01},
    },
    "kernels": {
        "POGO": {"lr": 0.5, "base": "VAdam", "landing": "strict"},
        "RGD": {"lr": 0.01},
        "RSDM": {"lr": 0.5, "r": 2},
        "Landing": {"lr": 0.01},
        "LandingPC": {"lr": 0.5},
        "SLPG": {"lr": 0.1},
        "Adam": {"lr": 0.01},
    },
    "none": {"Adam": {"lr": 0.01}},
}
"""Of each method under each constraint, from the paper's appendix D.

Kernels land strictly: with λ = ½ alone a single one of them goes as far as 3e-3 in the first steps.
"""

LAPTOP_RATES = {"POGO": 2.5, "LandingPC": 2.5, "RGD": 8, "RSDM": 8, "Landing": 8, "SLPG": 8}
"""What learning rates are multiplied by at laptop scale. A batch has an eighth of the images, the losses of which are
summed: who follows the gradient goes eight times as far along it. There are a sixth of the steps: of a given length
they cover √6 times less."""

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
        train, test = data.train.first(config["train_images"]), data.test.first(config["test_images"])
        augmented: dict[str, Any] = {"alternate_flips": True, "pad": 2, "seed": seed}
        part = ranks.part(batch_size)
        loader = BatchLoader(train.to(device), batch_size, data.mean, data.std, **augmented, part=part)
        model = make_model(tuple(config["widths"]), seed).to(DTYPES[config["dtype"]])
        model.whiten_by_(normalize(train.pixels[:WHITENING_IMAGES], data.mean, data.std))
        view = config["variant"] if constrained else "filters"
        if constrained:
            start: Init = INITS[view] if config["init"] == "auto" else config["init"]
            oo.orthogonalize_(model, {CONVOLUTIONS: view}, init=start, generator=generator(seed, "orthogonal"))
        model.to(device)
        ranks.start_alike(model)
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


PAPER_SIZES = {
    "dataset": "cifar10",
    "train_images": 50_000,
    "test_images": 10_000,
    "widths": [64, 256, 256],
    "batch_size": 2000,
    "epochs": 100.0,
    "evaluations": 1,
    "init": "auto",
    "amp": False,
}


class CNN(Experiment):
    """See the module."""

    name = "cnn"
    title = "A convolutional network on CIFAR-10"
    about = """
Classify CIFAR-10 with the network of the airbench speed runs, two million parameters, whose six 3×3 convolutions are
orthogonal: as filters (6 matrices of 64×216 to 256×2304), or kernel by kernel (218 624 matrices of 3×3). Adam is the
reference without a constraint.

Accuracy and loss are those of the test images. The distance is ‖XXᵀ − I‖_F/√p, mean and maximum over all matrices.

With --nproc, batch normalisation is over the whole batch, whichever processes its images are on.
"""
    scales: ClassVar = {
        "tiny": Scale(
            "1500 digits, for tests",
            seeds=1,
            sizes=PAPER_SIZES
            | {"dataset": "digits", "train_images": 500, "test_images": 200, "widths": [8, 16, 16]}
            | {"batch_size": 100, "epochs": 3.0},
        ),
        "laptop": Scale(
            "a part of CIFAR-10 and a narrow network, minutes",
            seeds=1,
            sizes=PAPER_SIZES
            | {"train_images": 10_000, "test_images": 2_000, "widths": [32, 64, 64], "batch_size": 250, "epochs": 10.0},
        ),
        "paper": Scale("as in the paper", seeds=5, sizes=PAPER_SIZES),
    }
    variants: ClassVar = {
        "filters": "each layer is one orthogonal matrix",
        "kernels": "each 3×3 kernel is an orthogonal matrix",
        "none": "no constraint, Adam alone",
    }
    parallel = True
    default_methods = (*PAPER, "Adam")
    panels = shown.PANELS
    columns = shown.COLUMNS
    claims = (
        Claim("POGO's accuracy is that of unconstrained Adam (within 2 points)", judges.as_accurate("Adam", 0.02)),
        Claim("POGO stays on the manifold (distance ≤ 1e-3)", judges.feasible("POGO", 1e-3)),
        Claim("POGO takes less time than RGD and RSDM", judges.faster("POGO", "RGD", "RSDM")),
        Claim("POGO's steps are under 15 % of the training time", judges.cheap("POGO", 0.15), "orthoptim"),
        Claim("POGO is within a point of the best method", judges.as_accurate("best", 0.01), "orthoptim"),
        Claim("POGO takes less time than RGD", judges.faster("POGO", "RGD"), "orthoptim"),
        Claim("POGO's distance is of RGD's order of magnitude", judges.as_near("POGO", "RGD", 10), "orthoptim"),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`."""
        factors = LAPTOP_RATES if config["scale"] == "laptop" else {}
        table = OPTIONS[config["variant"]]
        return {name: {**values, "lr": values["lr"] * factors.get(name, 1)} for name, values in table.items()}

    def prepare(self, config: Config) -> None:
        """See :meth:`Experiment.prepare`: the images."""
        if config["init"] not in INIT_NAMES:
            raise ValueError(f"unknown init {config['init']!r}; there are {', '.join(INIT_NAMES)}")
        check_batch(config)

    def problem(self, config: Config, method: str, seed: int) -> CnnTraining:
        """See :meth:`Experiment.problem`."""
        return CnnTraining(config, constrained=method != "Adam", seed=seed)
