"""A small training run that is saved after every step and goes on from its checkpoint."""

import hashlib
from pathlib import Path
from typing import Any

import torch

import orthoptim as oo


class Run:
    """A model with an orthogonal weight, a scheduler and random inputs.

    The ordinary weight makes the checkpoint large (a few MB), so that most of the time is spent in writing it.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(24, 24, bias=False), torch.nn.Linear(24, 10_000))
        pattern = {"0.weight": "matrix"}
        oo.orthogonalize_(self.model, pattern)
        self.opt = oo.POGO(oo.param_groups(self.model, pattern, lr=0.1, rest={"algorithm": "adamw", "lr": 1e-3}))
        self.schedule = torch.optim.lr_scheduler.StepLR(self.opt, 3, gamma=0.999)
        self.steps = 0

    def step(self) -> None:
        self.opt.zero_grad()
        self.model(torch.randn(4, 24)).sin().sum().backward()
        self.opt.step()
        self.schedule.step()
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.opt.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": torch.get_rng_state(),
            "steps": self.steps,
        }

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.opt.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"])
        self.steps = state["steps"]


def digest(state: dict[str, Any]) -> str:
    """A hash of every number of a checkpoint, to the last bit."""
    optimizer = state["optimizer"]
    rates = [group["lr"] for group in optimizer["param_groups"]]
    total = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                total.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        elif isinstance(value, torch.Tensor):
            total.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        else:
            total.update(repr(value).encode())

    add({**state, "optimizer": [optimizer["state"], rates]})
    return total.hexdigest()
