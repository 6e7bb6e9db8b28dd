"""The language model, trained once and kept; and rotations of it, learned for a few steps."""

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim.literals import Init
from orthoptim_experiments.harness.experiment import Config, Outcome
from orthoptim_experiments.problems.datasets.files import data_directory
from orthoptim_experiments.problems.decay import Decaying
from orthoptim_experiments.problems.rotations import text
from orthoptim_experiments.problems.rotations.model import LanguageModel, Rotations, Sizes, loss

FIXED: dict[str, Init | None] = {"none": None, "random": "random", "hadamard": "random-hadamard"}
"""Contenders that learn nothing, and where they stay; ``None``: at the identity."""


def model_of(config: Config) -> LanguageModel:
    """The trained model of a configuration: trained on the first call, then read from the cache."""
    keys = ("width", "layers", "heads", "hidden", "length", "train_steps", "train_batch")
    return _model(json.dumps({key: config[key] for key in keys}, sort_keys=True))


@cache
def _model(key: str) -> LanguageModel:
    config = json.loads(key)
    torch.manual_seed(0)
    sizes = Sizes(config["width"], config["layers"], config["heads"], config["hidden"])
    model = LanguageModel(sizes, config["length"])
    path = _path(key)
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
    else:
        _train(model, config)
        path.parent.mkdir(parents=True, exist_ok=True)
        oo.save(model.state_dict(), path)
    return model.requires_grad_(False)


def _path(key: str) -> Path:
    digest = hashlib.sha256(f"{key} {torch.__version__}".encode()).hexdigest()[:10]
    return data_directory() / "rotations" / f"{digest}.pt"


def _train(model: LanguageModel, config: Mapping[str, Any]) -> None:
    """AdamW with a warm-up and a cosine."""
    data = text.split(text.corpus()).train
    steps, generator = config["train_steps"], torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(steps):
        rate = min(1.0, (step + 1) / (0.05 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = 3e-3 * rate
        symbols = text.batch(data, config["train_batch"], config["length"], generator)
        optimizer.zero_grad()
        torch.autograd.backward(loss(model(symbols[:, :-1]), symbols[:, 1:]))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


class RotationTraining(Decaying):
    """Minimise the loss of the quantized model over rotations, on calibration text.

    Args:
        config: see the experiment.
        method: its name; see ``FIXED``.
        seed: of the rotations to begin with, and of the calibration text.
    """

    def __init__(self, config: Config, method: str, seed: int) -> None:
        self.config, self.method = config, method
        self.model = model_of(config)
        self.budget = 1 if method in FIXED else config["steps"]
        self.generator = torch.Generator().manual_seed(seed)
        width, heads = config["width"], config["heads"]
        self.stream = torch.nn.Parameter(torch.eye(width))
        self.values = torch.nn.Parameter(torch.eye(width // heads).repeat(config["layers"], heads, 1, 1))
        init = FIXED.get(method, "random-hadamard")
        if init is not None:
            for param in (self.stream, self.values):
                oo.orthogonalize_(param, init=init, det=1, generator=self.generator)
        _, self.calibration, test = text.split(text.corpus(), config.get("validation", False))
        self.test = text.windows(test, config["test_windows"], config["length"])

    def parameters(self) -> list[Tensor]:
        """R₁ and all R₂."""
        return [self.stream, self.values]

    def rotations(self) -> Rotations:
        """As they are now."""
        return Rotations(self.stream, self.values)

    def advance(self) -> None:
        """One batch; the learning rate falls linearly to zero."""
        if self.method not in FIXED:
            self.decay()
            config = self.config
            symbols = text.batch(self.calibration, config["batch"], config["length"], self.generator)
            self.optimizer.zero_grad()
            logits = self.model(symbols[:, :-1], self.rotations(), config["bits"])
            torch.autograd.backward(loss(logits, symbols[:, 1:]))
            self.optimizer.step()
        self.step += 1

    def due(self) -> bool:
        """At the beginning, every ``stride`` steps, and at the end."""
        return self.step % self.config["stride"] == 0 or self.step == self.budget

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Perplexity on the test text, the error of logits relative to full precision, and distances.

        In a sweep the validation text takes the place of the test text.
        """
        inputs, targets = self.test[:, :-1], self.test[:, 1:]
        exact = self.model(inputs)
        logits = self.model(inputs, self.rotations(), self.config["bits"])
        error = (logits - exact).square().mean() / (exact - exact.mean(-1, keepdim=True)).square().mean()
        distances = torch.cat([oo.distance(param).flatten() for param in self.parameters()])
        value = float(loss(logits, targets))
        return {
            "loss": value,
            "perplexity": math.exp(value),
            "full_precision": math.exp(float(loss(exact, targets))),
            "quantization_error": float(error),
            "distance": float(distances.mean()),
            "max_distance": float(distances.max()),
            "determinant": float(torch.linalg.det(self.stream.double())),
        }

    def outcome(self) -> Outcome | None:
        """See :meth:`Problem.outcome`."""
        if not all(bool(torch.isfinite(param).all()) for param in self.parameters()):
            return Outcome("diverged", f"a rotation is not finite after {self.step} steps")
        return Outcome("budget") if self.step >= self.budget else None

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Problem.state_dict`."""
        return {
            "step": self.step,
            "stream": self.stream.detach(),
            "values": self.values.detach(),
            "generator": self.generator.get_state(),
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Problem.load_state_dict`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.stream.copy_(state["stream"])
        self.values.copy_(state["values"])
        self.generator.set_state(state["generator"])
        self.step = state["step"]
