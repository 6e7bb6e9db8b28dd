"""
Averaged weights: EMA and SWA on the manifold
=============================================

An average of orthogonal matrices is not orthogonal. ``oo.ema_multi_avg_fn`` projects the average after each update; for
stochastic weight averaging project once at the end. The distances are logged to TensorBoard if it is installed.
"""

import argparse
import importlib.util
import tempfile

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import orthoptim as oo
from orthoptim_experiments.problems.datasets import load

ORTHOGONAL = {"0.weight": "matrix", "2.weight": "matrix"}


def main() -> None:
    """Train, and average in three ways."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    digits = load("digits8").train
    images, labels = digits.pixels.flatten(1) / 16 - 0.3, digits.labels
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    oo.orthogonalize_(model, ORTHOGONAL)
    opt = oo.POGO(oo.param_groups(model, ORTHOGONAL, lr=0.3, rest={"algorithm": "adamw", "lr": 3e-3}))

    ema = AveragedModel(model, multi_avg_fn=oo.ema_multi_avg_fn(model, ORTHOGONAL, decay=0.95))
    plain = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    swa = AveragedModel(model)
    writer = None
    if importlib.util.find_spec("tensorboard"):
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(tempfile.mkdtemp())

    def evaluate(network: nn.Module) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(network(images), labels))

    first = evaluate(model)
    for step in range(steps):
        rows = torch.arange(100 * step, 100 * step + 100) % len(images)
        opt.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        opt.step()
        ema.update_parameters(model)
        plain.update_parameters(model)
        if step >= steps // 2:
            swa.update_parameters(model)
        if writer and step % 20 == 0:
            for name, value in opt.drift().as_dict().items():
                writer.add_scalar(f"drift/{name}", value, step)

    oo.orthogonalize_(swa.module, ORTHOGONAL)  # once, at the end
    distances = {}
    for name, average in (("EMA of torch", plain), ("EMA on the manifold", ema), ("SWA, projected", swa)):
        distances[name] = max(float(oo.distance(average.module[i].weight)) for i in (0, 2))
        print(f"{name}: loss {first:.3f} -> {evaluate(average):.3f}, largest distance {distances[name]:.1e}")
    assert evaluate(ema) < first
    assert evaluate(swa) < first
    assert max(distances["EMA on the manifold"], distances["SWA, projected"]) <= 1e-5 < distances["EMA of torch"]


if __name__ == "__main__":
    main()
