"""The O-ViT on CIFAR-10: a transformer whose queries, keys and values are orthogonal transformations."""

from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Scale
from orthoptim_experiments.harness.methods import LANDINGS, PAPER, Options, pogo_family
from orthoptim_experiments.problems.classification import judges
from orthoptim_experiments.problems.classification.experiment import ClassificationExperiment
from orthoptim_experiments.problems.vit.training import VitTraining

OPTIONS: dict[str, Options] = {
    **pogo_family({"lr": 0.01, "base": "SGD"}),
    "RGD": {"lr": 0.1},
    "RSDM": {"lr": 0.5, "r": 300},
    "Landing": {"lr": 0.001, "base": "SGD", "momentum": 0.1},
    "LandingPC": {"lr": 0.01},
    "SLPG": {"lr": 0.01},
    "POGO-VAdam": {"lr": 0.1},
    "StiefelMuon": {"lr": 0.02},
    "Adam": {"lr": 5e-4},
}
"""The options of each method, from the paper's appendix D; it has neither POGO-VAdam nor StiefelMuon."""

LAPTOP_LR = 0.1
"""The learning rate of gradient methods at laptop scale. With the paper's, from 0.001 to 0.1, the matrices of some
methods hardly move in a twentieth of the steps: after 750, POGO was at 40.7 % with 0.01 and at 44.4 % with 0.1, Landing
at 40.6 % with 0.01 and at 45.1 % with 0.1, RGD at 44.5 % with 0.1 and at 33.6 % with 1."""

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


class ViT(ClassificationExperiment):
    """See the module."""

    name = "vit"
    title = "The O-ViT"
    about = """
Classify images ({dataset}) with a vision transformer whose query, key and value matrices are orthogonal: at the paper's
depth 6 and dimension 1024 these are 18 matrices of 1024×1024. Adam is the reference without a constraint.

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
    length = "epochs"
    default_methods = (*PAPER, "Adam")
    columns = tuple(name for name in ClassificationExperiment.columns if name != "tta_accuracy")
    claims = (
        Claim(
            "All methods reach similar accuracies (within 5 points), none below unconstrained Adam",
            judges.surpasses("Adam"),
            "All methods achieve similar test accuracy, slightly surpassing an unconstrained baseline",
            "§5.2, ViT",
        ),
        Claim(
            "POGO and both landing methods are twice as fast as RGD",
            judges.as_fast(("POGO", "Landing", "LandingPC"), "RGD", 2),
            "both landing methods and POGO are twice as fast as RGD",
            "§5.2, ViT",
        ),
        Claim(
            "POGO takes less time than RSDM",
            judges.slower("POGO", ("RSDM",), 1),
            "POGO finishes 5 minutes quicker than RSDM",
            "§5.2, ViT",
        ),
        Claim(
            "POGO is never farther from the manifold than RGD",
            judges.as_near("POGO", "RGD", 1),
            "its distance is always lower than that of RGD, the retraction method",
            "§5.2, ViT",
        ),
        Claim(
            "RSDM leaves the manifold, far beyond RGD (a hundred times)",
            judges.farther("RSDM", "RGD", 100),
            "RSDM leaves the manifold again, this time 3 orders of magnitude further than the reference method, RGD",
            "§5.2, ViT",
        ),
        Claim(
            "Landing comes nearer and then leaves; LandingPC leaves and then comes nearer",
            judges.mirrored,
            "we see that Landing initially gets closer to the manifold and then leaves it again where its extension, "
            "LandingPC, mirrors this behavior",
            "§5.2, ViT",
        ),
        Claim("POGO is within a point of the best", judges.as_accurate("best", 0.01)),
        Claim("POGO's distance is of RGD's order of magnitude", judges.as_near("POGO", "RGD", 10)),
        Claim("RGD's optimizer takes twice the time of POGO's", judges.slower("POGO", ("RGD",), 2, "optimizer_time")),
    )

    def methods(self, config: Config) -> dict[str, Options]:
        """See :meth:`Experiment.methods`; RSDM's submanifold keeps its share of the dimension."""
        r = round(OPTIONS["RSDM"]["r"] * config["dim"] / 1024)
        options: dict[str, Options] = OPTIONS | {"RSDM": {**OPTIONS["RSDM"], "r": r}}
        if config["scale"] == "laptop":
            for name in ("POGO", *LANDINGS, "RGD", "Landing", "LandingPC", "SLPG"):
                options[name] = {**options[name], "lr": LAPTOP_LR}
        return options

    def prepare(self, config: Config) -> None:
        """See :meth:`Experiment.prepare`: the images."""
        if config["dim"] % config["heads"]:
            raise ValueError(f"dim {config['dim']} is no multiple of the number of heads, {config['heads']}")
        super().prepare(config)

    def problem(self, config: Config, method: str, seed: int) -> VitTraining:
        """See :meth:`Experiment.problem`."""
        return VitTraining(config, constrained=method != "Adam", seed=seed)
