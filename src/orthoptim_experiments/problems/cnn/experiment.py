"""A convolutional network on CIFAR-10 whose filters or kernels are orthogonal."""

from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Scale
from orthoptim_experiments.harness.methods import LANDINGS, PAPER, Options, pogo_family
from orthoptim_experiments.problems.classification import judges
from orthoptim_experiments.problems.classification.experiment import ClassificationExperiment
from orthoptim_experiments.problems.cnn.training import INIT_NAMES, CnnTraining

POGO = pogo_family({"lr": 0.5, "base": "VAdam"})
PEERS: dict[str, Options] = dict.fromkeys(("geoopt", "torch-orthogonal", "geotorch"), {"lr": 0.01})

OPTIONS: dict[str, dict[str, Options]] = {
    "filters": {
        **POGO,
        "RGD": {"lr": 0.01},
        "RSDM": {"lr": 0.1, "r": 64},
        "Landing": {"lr": 0.001, "base": "SGD", "momentum": 0.6},
        "LandingPC": {"lr": 0.5},
        "SLPG": {"lr": 0.001},
        "Adam": {"lr": 0.01},
        **PEERS,
    },
    "kernels": {
        **POGO,
        "RGD": {"lr": 0.01},
        "RSDM": {"lr": 0.5, "r": 2},
        "Landing": {"lr": 0.01},
        "LandingPC": {"lr": 0.5},
        "SLPG": {"lr": 0.1},
        "Adam": {"lr": 0.01},
        **PEERS,
    },
    "none": {"Adam": {"lr": 0.01}},
}
"""The options of each method under each constraint, from the paper's appendix D; the peers have Adam's rate.

With λ = ½ a single kernel of the 218 624 goes as far as 3e-3 in the first steps; POGO-strict keeps all within 1.5e-6.
"""

LAPTOP_RATES = {**dict.fromkeys(("POGO", *LANDINGS, "LandingPC"), 2.5), "RGD": 8, "RSDM": 8, "Landing": 8, "SLPG": 8}
"""Factors of the learning rates at laptop scale. A batch has an eighth of the images, the losses of which are
summed: who follows the gradient goes eight times as far along it. There are a sixth of the steps: of a given length
they cover √6 times less."""

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


class CNN(ClassificationExperiment):
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
        scaled = {name: {**table[name], "lr": table[name]["lr"] * factor} for name, factor in factors.items() if name in table}
        return {**table, **scaled}

    def prepare(self, config: Config) -> None:
        """See :meth:`Experiment.prepare`: the images."""
        if config["init"] not in INIT_NAMES:
            raise ValueError(f"unknown init {config['init']!r}; there are {', '.join(INIT_NAMES)}")
        super().prepare(config)

    def problem(self, config: Config, method: str, seed: int) -> CnnTraining:
        """See :meth:`Experiment.problem`."""
        return CnnTraining(config, constrained=method != "Adam", seed=seed)
