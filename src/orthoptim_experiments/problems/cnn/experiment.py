"""A convolutional network on CIFAR-10 whose filters or kernels are orthogonal."""

from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim, only
from orthoptim_experiments.harness.experiment import Config, Scale
from orthoptim_experiments.harness.methods import LANDINGS, PAPER, Options, pogo_family
from orthoptim_experiments.problems.classification import judges
from orthoptim_experiments.problems.classification.experiment import ClassificationExperiment
from orthoptim_experiments.problems.cnn.training import INIT_NAMES, CnnTraining

POGO = pogo_family({"lr": 0.5, "base": "VAdam"})
PEERS: dict[str, Options] = {name: {"lr": 0.01} for name in ("geoopt", "torch-orthogonal", "geotorch")}

OPTIONS: dict[str, dict[str, Options]] = {
    "filters": {
        **POGO,
        "RGD": {"lr": 0.01},
        "RSDM": {"lr": 0.1, "r": 64},
        "Landing": {"lr": 0.001, "base": "SGD", "momentum": 0.6},
        "LandingPC": {"lr": 0.5},
        "SLPG": {"lr": 0.001},
        "StiefelMuon": {"lr": 0.02},
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
        "StiefelMuon": {"lr": 0.02},
        "Adam": {"lr": 0.01},
        **PEERS,
    },
    "none": {"Adam": {"lr": 0.01}},
}
"""The options of each method under each constraint, from the paper's appendix D; the peers have Adam's rate.
StiefelMuon is not in the paper: docs/methods/stiefelmuon.md.

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
    title = "A convolutional network"
    about = """
Classify images ({dataset}) with the network of the airbench speed runs, whose six 3×3 convolutions are orthogonal: as
filters, a matrix for each layer, or kernel by kernel. At the paper's widths, 64, 256 and 256, these are 6 matrices of
64×216 to 256×2304, or 218 624 of 3×3. Adam is the reference without a constraint.

Accuracy and loss are those of the test images. The distance is ‖XXᵀ − I‖_F/√p, mean and maximum over all matrices.

The paper projects the initial weights onto the manifold. Filters start so; kernels, most of which are zero in the
network's own initialisation and have no nearest orthogonal matrix, start at random unless --init project is given.

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
    default_methods = (*PAPER, "POGO-strict", "Adam")
    claims = (
        Claim(
            "POGO's accuracy is that of unconstrained Adam (within 2 points)",
            judges.as_accurate("Adam", 0.02),
            "POGO consistently obtains accuracy comparable to Adam with minimal extra overhead",
            "§5.2, CNN",
        ),
        Claim(
            "POGO learns at the pace of Adam (steps to 95 % of Adam's accuracy, within a factor of 1.25)",
            judges.same_pace("POGO", "Adam", 1.25),
            "POGO can learn at the same pace as the unconstrained Adam baseline",
            "Fig. 5",
        ),
        Claim(
            "POGO stays on the manifold (every matrix within 1e-3)",
            judges.feasible("POGO", 1e-3),
            "POGO and SLPG stay in every case within the manifold",
            "§5.2, CNN",
        ),
        Claim(
            "Filters: RGD and RSDM take twice POGO's training time",
            only("variant", "filters", judges.slower("POGO", ("RGD", "RSDM"), 2)),
            "RGD and RSDM take double that time with orthogonal filters",
            "§5.2, CNN",
        ),
        Claim(
            "Kernels: RSDM's optimizer takes orders of magnitude more time than POGO's (100 times)",
            only("variant", "kernels", judges.slower("POGO", ("RSDM",), 100, "optimizer_time")),
            "While RSDM takes 17 hours to train on average, POGO trains in 3 minutes",
            "Fig. 1",
        ),
        Claim(
            "Filters: SLPG matches POGO (within 2 points)",
            only("variant", "filters", judges.alike(("POGO", "SLPG"), 0.02)),
            "while SLPG matches POGO in the orthogonal-filter case (both overlap)",
            "§5.2, CNN",
        ),
        Claim(
            "Kernels: SLPG does not match POGO (2 points below)",
            only("variant", "kernels", judges.alike(("POGO", "SLPG"), 0.02, differ=True)),
            "it does not match its performance in the orthogonal-kernel case",
            "§5.2, CNN",
        ),
        Claim("POGO-strict keeps every matrix within 1e-5", judges.feasible("POGO-strict", 1e-5)),
        Claim("POGO's steps are under 15 % of the training time", judges.cheap("POGO", 0.15)),
        Claim("POGO is within a point of the best method", judges.as_accurate("best", 0.01)),
        Claim("POGO's distance is of RGD's order of magnitude", judges.as_near("POGO", "RGD", 10)),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`."""
        factors = LAPTOP_RATES if config["scale"] == "laptop" else {}
        table = OPTIONS[config["variant"]]
        scaled = {
            name: {**table[name], "lr": table[name]["lr"] * factor} for name, factor in factors.items() if name in table
        }
        return {**table, **scaled}

    def prepare(self, config: Config) -> None:
        """See :meth:`Experiment.prepare`: the images."""
        if config["init"] not in INIT_NAMES:
            raise ValueError(f"unknown init {config['init']!r}; there are {', '.join(INIT_NAMES)}")
        super().prepare(config)

    def problem(self, config: Config, method: str, seed: int) -> CnnTraining:
        """See :meth:`Experiment.problem`."""
        return CnnTraining(config, constrained=method != "Adam", seed=seed)
