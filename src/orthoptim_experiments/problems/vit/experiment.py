"""The O-ViT on CIFAR-10: a transformer whose queries, keys and values are orthogonal transformations."""

from typing import Any, ClassVar

import torch

import orthoptim as oo
from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import PAPER, Options
from orthoptim_experiments.problems.classification import judges, shown
from orthoptim_experiments.problems.classification.training import Training, check_batch
from orthoptim_experiments.problems.datasets import BatchLoader, load
from orthoptim_experiments.problems.vit.model import OViT

ATTENTION = {f"blocks.*.attention.{name}": "matrix" for name in ("query", "key", "value")}

OPTIONS: dict[str, dict[str, Any]] = {
    "POGO": {"lr": 0.01, "base": "SGD"},
    "RGD": {"lr": 0.1},
    "RSDM": {"lr": 0.5, "r": 300},
    "Landing": {"lr": 0.001, "base": "SGD", "momentum": 0.1},
    "LandingPC": {"lr": 0.01},
    "SLPG": {"lr": 0.01},
    "Adam": {"lr": 5e-4},
}
"""Of each method, from the paper's appendix D."""

LAPTOP_LR = 0.1
"""Of all that follow the gradient, at laptop scale. With those of the paper, from 0.001 to 0.1, the matrices of some
hardly move in a twentieth of the steps: after 750, POGO was at 40.7 % with 0.01 and at 44.4 % with 0.1, Landing at
40.6 % with 0.01 and at 45.1 % with 0.1, RGD at 44.5 % with 0.1 and at 33.6 % with 1."""

OTHERS_LR = 5e-4
HALF = (0.5, 0.5, 0.5)


class VitTraining(Training):
    """Adam for all but the matrices under study; constant learning rates, no augmentation.

    Args:
        config: with ``dataset``, ``train_images`` and ``test_images``, ``dim``, ``depth``, ``heads``,
            ``hidden``, ``batch_size``, ``device`` and what :class:`Training` needs.
        constrained: whether the matrices stay orthogonal; they start so in any case.
        seed: of all draws.
    """

    def __init__(self, config: Config, constrained: bool, seed: int) -> None:
        data, device = load(config["dataset"]), config["device"]
        train, test = data.train.first(config["train_images"]), data.test.first(config["test_images"])
        loader = BatchLoader(train.to(device), config["batch_size"], HALF, HALF, seed=seed)
        model = make_model(config, seed).to(device)
        studied = {param for group in oo.param_groups(model, ATTENTION, rest=None) for _, param in group["params"]}
        others = torch.optim.Adam([param for param in model.parameters() if param not in studied], lr=OTHERS_LR)
        super().__init__(config, model, ATTENTION, constrained, others, loader, test.to(device), seed)


def make_model(config: Config, seed: int) -> OViT:
    """The network as its seed draws it, whatever was drawn before."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return OViT(config["dim"], config["depth"], config["heads"], config["hidden"])


PAPER_SIZES = {
    "dataset": "cifar10",
    "train_images": 50_000,
    "test_images": 10_000,
    "dim": 1024,
    "depth": 6,
    "heads": 4,
    "hidden": 256,
    "batch_size": 32,
    "epochs": 10.0,
    "evaluations": 4,
    "amp": False,
}


class ViT(Experiment):
    """See the module."""

    name = "vit"
    title = "The O-ViT on CIFAR-10"
    about = """
Classify CIFAR-10 with a vision transformer of 28 million parameters, whose query, key and value matrices are
orthogonal: 18 matrices of 1024×1024. Adam is the reference without a constraint.

Accuracy and loss are those of the test images. The distance is ‖XXᵀ − I‖_F/√p, mean and maximum over all matrices.
"""
    scales: ClassVar = {
        "tiny": Scale(
            "1500 digits, for tests",
            seeds=1,
            sizes=PAPER_SIZES
            | {"dataset": "digits", "train_images": 256, "test_images": 100, "epochs": 3.0, "evaluations": 1}
            | {"dim": 16, "depth": 2, "heads": 2, "hidden": 16},
        ),
        "laptop": Scale(
            "a part of CIFAR-10 and a small transformer, minutes",
            seeds=1,
            sizes=PAPER_SIZES
            | {"train_images": 8_000, "test_images": 2_000, "epochs": 3.0, "evaluations": 2, "dim": 256, "depth": 3},
        ),
        "paper": Scale("as in the paper", seeds=5, sizes=PAPER_SIZES),
    }
    dtypes = ("float32",)
    default_methods = (*PAPER, "Adam")
    panels = shown.PANELS
    columns = tuple(name for name in shown.COLUMNS if name != "tta_accuracy")
    claims = (
        Claim(
            "All methods reach similar accuracies; POGO is within a point of the best",
            judges.as_accurate("best", 0.01),
        ),
        Claim("POGO is never farther from the manifold than RGD", judges.as_near("POGO", "RGD", 1)),
        Claim("POGO takes less time than RGD", judges.faster("POGO", "RGD"), "orthoptim"),
        Claim("POGO's distance is of RGD's order of magnitude", judges.as_near("POGO", "RGD", 10), "orthoptim"),
        Claim("POGO takes less time than RGD and RSDM", judges.faster("POGO", "RGD", "RSDM")),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`; RSDM's submanifold keeps its share of the dimension."""
        r = round(OPTIONS["RSDM"]["r"] * config["dim"] / PAPER_SIZES["dim"])
        options: dict[str, Options] = OPTIONS | {"RSDM": {**OPTIONS["RSDM"], "r": r}}
        if config["scale"] == "laptop":
            for name in ("POGO", "RGD", "Landing", "LandingPC", "SLPG"):
                options[name] = {**options[name], "lr": LAPTOP_LR}
        return options

    def prepare(self, config: Config) -> None:
        """See :meth:`Experiment.prepare`: the images."""
        if config["dim"] % config["heads"]:
            raise ValueError(f"dim {config['dim']} is no multiple of the number of heads, {config['heads']}")
        check_batch(config)

    def problem(self, config: Config, method: str, seed: int) -> VitTraining:
        """See :meth:`Experiment.problem`."""
        return VitTraining(config, constrained=method != "Adam", seed=seed)
