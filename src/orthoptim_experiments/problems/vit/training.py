"""The training of the O-ViT: any method for queries, keys and values, Adam for all else."""

import torch

import orthoptim as oo
from orthoptim_experiments.harness.experiment import Config
from orthoptim_experiments.problems.classification.training import Training, split_images
from orthoptim_experiments.problems.datasets import BatchLoader, load
from orthoptim_experiments.problems.vit.model import OViT

ATTENTION = {f"blocks.*.attention.{name}": "matrix" for name in ("query", "key", "value")}

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
        train, test = split_images(config, data)
        loader = BatchLoader(train.to(device), config["batch_size"], HALF, HALF, seed=seed)
        model = make_model(config, seed).to(device)
        studied = {param for group in oo.param_groups(model, ATTENTION, rest=None) for param in group["params"]}
        others = torch.optim.Adam([param for param in model.parameters() if param not in studied], lr=OTHERS_LR)
        super().__init__(config, model, ATTENTION, constrained, others, loader, test.to(device), seed)


def make_model(config: Config, seed: int) -> OViT:
    """The network as its seed draws it, whatever was drawn before."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return OViT(config["dim"], config["depth"], config["heads"], config["hidden"])
