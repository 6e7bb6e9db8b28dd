"""
Lightning: watch, checkpoint, resume
====================================

``configure_optimizers`` returns an orthoptimizer; ``DriftMonitor`` logs the distance and stops the run if it grows. The
run is interrupted after half of its epochs and resumed from Lightning's own checkpoint. With two processes (DDP) and in
bfloat16: ``python lightning_digits.py --devices 2 --precision bf16-mixed``.
"""

import argparse
import logging
import tempfile
import warnings
from pathlib import Path

import lightning as L  # noqa: N812
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import orthoptim as oo
from orthoptim.integrations.lightning import DriftMonitor
from orthoptim_experiments.problems.datasets import load

ORTHOGONAL = {"net.1.weight": "matrix", "net.3.weight": "matrix"}


class Classifier(L.LightningModule):
    """Two orthogonal layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )
        oo.orthogonalize_(self, ORTHOGONAL)
        self.losses: list[float] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer for all parameters."""
        return oo.POGO(oo.param_groups(self, ORTHOGONAL, lr=0.1, rest={"algorithm": "adamw", "lr": 3e-3}))


def main() -> None:
    """Train, stop, resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    options = parser.parse_args()
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")

    L.seed_everything(0, verbose=False)
    digits = load("digits8").train
    data = DataLoader(TensorDataset(digits.pixels / 16 - 0.3, digits.labels), batch_size=100, shuffle=True)

    def trainer(epochs: int) -> L.Trainer:
        return L.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            devices=options.devices,
            strategy="ddp" if options.devices > 1 else "auto",
            precision=options.precision,
            callbacks=[DriftMonitor(every_n_steps=10, limit=1e-3, action="stop")],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )

    model = Classifier()
    first = trainer(options.epochs // 2)
    first.fit(model, data)
    folder = Path(first.strategy.broadcast(tempfile.mkdtemp()))  # one for all processes
    first.save_checkpoint(folder / "half.ckpt")

    resumed = Classifier()
    second = trainer(options.epochs)
    second.fit(resumed, data, ckpt_path=folder / "half.ckpt", weights_only=True)

    distance = max(float(value) for key, value in second.callback_metrics.items() if key.endswith("max_distance"))
    if second.is_global_zero:
        print(f"loss {model.losses[0]:.3f} -> {resumed.losses[-1]:.3f}, largest distance {distance:.1e}")
    assert resumed.losses[-1] < model.losses[-1] < model.losses[0]
    assert distance <= 1e-5


if __name__ == "__main__":
    main()
