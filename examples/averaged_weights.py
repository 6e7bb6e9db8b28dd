"""
Averaged weights: EMA and SWA on the manifold
=============================================

An average of orthogonal matrices is not orthogonal. ``oo.ema_multi_avg_fn`` projects the average after each update; for
stochastic weight averaging project once at the end. The distances are logged to TensorBoard if it is installed.
"""

import argparse
import importlib.util
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import orthoptim as oo
from orthoptim_experiments.problems.datasets import load

ORTHOGONAL = {"0.weight": "matrix", "2.weight": "matrix"}


def main() -> None:
    """Train, and average in three ways; stop half way, and resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    digits = load("digits8").train
    images, labels = digits.pixels.flatten(1) / 16 - 0.3, digits.labels
    writer = None
    if importlib.util.find_spec("tensorboard"):
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(tempfile.mkdtemp())

    def build() -> tuple[nn.Module, oo.POGO, dict[str, AveragedModel]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        oo.orthogonalize_(model, ORTHOGONAL)
        opt = oo.POGO(oo.param_groups(model, ORTHOGONAL, lr=0.3, rest={"algorithm": "adamw", "lr": 3e-3}))
        averages = {
            "EMA of torch": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95)),
            "EMA on the manifold": AveragedModel(
                model, multi_avg_fn=oo.ema_multi_avg_fn(model, ORTHOGONAL, decay=0.95)
            ),
            "SWA, projected": AveragedModel(model),
        }
        return model, opt, averages

    def evaluate(network: nn.Module) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(network(images), labels))

    def train(model: nn.Module, opt: oo.POGO, averages: dict[str, AveragedModel], numbers: range) -> None:
        for step in numbers:
            rows = torch.arange(100 * step, 100 * step + 100) % len(images)
            opt.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            opt.step()
            for name, average in averages.items():
                if not name.startswith("SWA") or step >= steps // 2:
                    average.update_parameters(model)
            if writer and step % 20 == 0:
                for name, value in opt.drift().as_dict().items():
                    writer.add_scalar(f"drift/{name}", value, step)

    model, opt, averages = build()
    first = evaluate(model)
    train(model, opt, averages, range(steps // 2))
    half = evaluate(averages["EMA on the manifold"])
    saved = {"model": model.state_dict(), "opt": opt.state_dict()}
    saved |= {name: average.state_dict() for name, average in averages.items()}
    path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    oo.save(saved, path)

    model, opt, averages = build()  # resumed
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    for name, average in averages.items():
        average.load_state_dict(saved[name])
    train(model, opt, averages, range(steps // 2, steps))

    oo.orthogonalize_(averages["SWA, projected"].module, ORTHOGONAL)  # once, at the end
    distances = {}
    for name, average in averages.items():
        distances[name] = max(float(oo.distance(average.module[i].weight)) for i in (0, 2))
        print(f"{name}: loss {first:.3f} -> {evaluate(average):.3f}, largest distance {distances[name]:.1e}")
    assert evaluate(averages["EMA on the manifold"]) < half < first
    assert evaluate(averages["SWA, projected"]) < first
    assert max(distances["EMA on the manifold"], distances["SWA, projected"]) <= 1e-5 < distances["EMA of torch"]


if __name__ == "__main__":
    main()
