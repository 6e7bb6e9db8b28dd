"""
PEFT: low-rank adapters with an orthonormal factor
==================================================

A frozen network is adapted to rotated images. ``stiefel_lora`` makes the factor B of each adapter orthonormal (with
``--core`` both factors, with a free core between them); the adapter is saved in PEFT's own files, loaded by PEFT alone,
and merged.
"""

import argparse
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

import orthoptim as oo
from orthoptim.integrations.peft import fold_, stiefel_lora
from orthoptim_experiments.problems.datasets import load


def pretrained(images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """A network that knows upright digits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        opt.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        opt.step()
    return model


def main() -> None:
    """Adapt, save, resume, merge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--core", action="store_true")
    options = parser.parse_args()
    digits = load("digits8").train
    upright, labels = digits.pixels / 16 - 0.3, digits.labels
    images = upright.rot90(1, (-2, -1)).flatten(1)

    config = LoraConfig(r=8, lora_alpha=16, target_modules=["0", "2"], modules_to_save=["4"])

    def build() -> tuple[nn.Module, oo.POGO, dict[str, str]]:
        model = get_peft_model(pretrained(upright.flatten(1), labels), config)
        orthogonal = stiefel_lora(model, core=options.core, generator=torch.Generator().manual_seed(0))
        groups = oo.param_groups(model, orthogonal, lr=0.1, rest={"algorithm": "adamw", "lr": 3e-3})
        return model, oo.POGO(groups), orthogonal

    losses = []

    def train(model: nn.Module, opt: oo.POGO, steps: int) -> None:
        for _ in range(steps):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            opt.step()
            losses.append(float(loss.detach()))

    model, opt, _ = build()
    train(model, opt, options.steps // 2)
    saved = {"model": model.state_dict(), "opt": opt.state_dict()}
    model, opt, _ = build()  # resumed
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    train(model, opt, options.steps - options.steps // 2)
    distance = max(row.max_distance for row in opt.drift())

    # PEFT's own files, read by PEFT alone
    folder = tempfile.mkdtemp()
    model.eval()
    expected = model(images).detach()
    fold_(model).save_pretrained(folder)
    loaded = PeftModel.from_pretrained(pretrained(upright.flatten(1), labels), folder).eval()
    torch.testing.assert_close(loaded(images), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(loaded.merge_and_unload()(images), expected, rtol=0, atol=1e-4)

    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, largest distance {distance:.1e}")
    assert losses[-1] < losses[options.steps // 2] < losses[0]
    assert distance <= 1e-5


if __name__ == "__main__":
    main()
