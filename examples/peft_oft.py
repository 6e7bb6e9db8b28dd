"""
PEFT: orthogonal fine-tuning, with blocks that are orthogonal
=============================================================

Orthogonal fine-tuning rotates the inputs of a frozen layer in blocks. PEFT trains skew matrices and approximates the
Cayley transform by a few terms of a series, which is orthogonal only near the start. ``orthogonal_blocks`` trains the
blocks themselves; ``landing="strict"`` keeps them within 1.5e-6 however long the steps are. Both ways are run, and how
far each ends from orthogonal is printed.
"""

import argparse
import tempfile

import torch
from peft import OFTConfig, PeftModel, get_peft_model
from peft.tuners.oft.layer import OFTRotationModule
from torch import nn

import orthoptim as oo
from orthoptim.integrations.peft import fold_, orthogonal_blocks
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
    """Adapt by rotations in both ways; save and load one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    digits = load("digits8").train
    upright, labels = digits.pixels / 16 - 0.3, digits.labels
    images = upright.rot90(1, (-2, -1)).flatten(1)
    config = OFTConfig(r=0, oft_block_size=32, target_modules=["0", "2"])

    def train(model: nn.Module, opt: torch.optim.Optimizer, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            opt.step()
            losses.append(float(loss.detach()))
        return losses

    # PEFT's way
    model = get_peft_model(pretrained(upright.flatten(1), labels), config)
    series = train(model, torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=6e-3), steps)
    modules = [module for module in model.modules() if isinstance(module, OFTRotationModule)]
    blocks = [module._cayley_batch(module.weight, module.block_size, True, 5).detach() for module in modules]
    distance = float(oo.distance(torch.cat(blocks)).max())
    print(f"PEFT's series:   loss {series[0]:.3f} -> {series[-1]:.3f}, largest distance {distance:.1e}")

    # directly
    def build() -> tuple[nn.Module, oo.POGO]:
        model = get_peft_model(pretrained(upright.flatten(1), labels), config)
        return model, oo.POGO(oo.param_groups(model, orthogonal_blocks(model), lr=1.0, rest=None, landing="strict"))

    model, opt = build()
    losses = train(model, opt, steps // 2)
    saved = {"model": model.state_dict(), "opt": opt.state_dict()}
    model, opt = build()  # resumed
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    losses += train(model, opt, steps - steps // 2)
    distance = max(row.max_distance for row in opt.drift())

    # PEFT's own files, read by PEFT alone
    folder = tempfile.mkdtemp()
    expected = model(images).detach()
    fold_(model).save_pretrained(folder)
    loaded = PeftModel.from_pretrained(pretrained(upright.flatten(1), labels), folder)
    torch.testing.assert_close(loaded(images), expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(loaded.merge_and_unload()(images), expected, rtol=0, atol=1e-3)

    print(f"blocks directly: loss {losses[0]:.3f} -> {losses[-1]:.3f}, largest distance {distance:.1e}")
    assert losses[-1] < losses[steps // 2] < losses[0]
    assert distance <= 1e-5


if __name__ == "__main__":
    main()
