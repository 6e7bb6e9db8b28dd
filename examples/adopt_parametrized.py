"""
From a parametrization to an optimizer
======================================

A model with ``torch.nn.utils.parametrizations.orthogonal`` computes each orthogonal weight anew in every forward pass.
``oo.adopt_`` removes the parametrizations, keeps the values, and returns the patterns for the optimizer.
"""

import argparse

import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

import orthoptim as oo
from orthoptim_experiments.problems.datasets import load


def main() -> None:
    """Adopt, train, save, resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    digits = load("digits8").train
    images, labels = digits.pixels.flatten(1) / 16 - 0.3, digits.labels

    def build() -> tuple[nn.Module, oo.POGO]:
        torch.manual_seed(0)
        layers = [orthogonal(nn.Linear(64, 64)), nn.ReLU(), orthogonal(nn.Linear(64, 64)), nn.ReLU(), nn.Linear(64, 10)]
        model = nn.Sequential(*layers)
        before = model(images)
        patterns = oo.adopt_(model)
        assert torch.equal(model(images), before)
        groups = oo.param_groups(model, patterns, lr=0.1, rest={"algorithm": "adamw", "lr": 3e-3})
        return model, oo.POGO(groups)

    losses = []

    def train(model: nn.Module, opt: oo.POGO, steps: int) -> None:
        for _ in range(steps):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            opt.step()
            losses.append(float(loss.detach()))

    model, opt = build()
    train(model, opt, steps // 2)
    saved = {"model": model.state_dict(), "opt": opt.state_dict()}
    model, opt = build()
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    train(model, opt, steps - steps // 2)

    distance = max(row.max_distance for row in opt.drift())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, largest distance {distance:.1e}")
    assert losses[-1] < losses[steps // 2] < losses[0]
    assert distance <= 1e-5


if __name__ == "__main__":
    main()
