"""SGDG as it is used in quantization pipelines: what its description and its behaviour say, written anew.

The formulas are those of Cayley SGD with momentum (Li, Li & Todorovic, 2020), for orthonormal rows:

    M = βV − G,  Ŵ = XᴴM − ½ Xᴴ(MXᴴ)X,  W = Ŵ − Ŵᴴ,  α = min(η, 2q/(‖W‖₁ + ε)),
    Y⁰ = X + αXW,  Yⁱ⁺¹ = X + ½α(X + Yⁱ)W (twice),  X ← Yˢ,  V ← XW.

The programs that are passed around differ from them in three ways, which tests/ reproduces:

- the last assignment goes to a temporary, so that V stays zero and the momentum β has no effect;
- one step in a hundred is preceded by a QR decomposition, drawn from Python's global ``random``: a run depends on
  whoever else draws from it;
- nothing else returns to the manifold, so that the truncation error of the iteration accumulates in between.

For experiments only: use an optimizer of :mod:`orthoptim` instead.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from orthoptim import stiefel

_Q, _EPS, _ITERATIONS = 0.5, 1e-8, 2


class SGDG(torch.optim.Optimizer):
    """See the module.

    Args:
        params: matrices with orthonormal rows, or batches of them.
        lr: η.
        momentum: β, which has no effect.
    """

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._step(param, group)
        return loss

    def _step(self, param: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(param)
        x = param.clone()
        if random.randint(1, 101) == 1:  # nosec B311
            x = stiefel.row_qr(x)
        assert param.grad is not None
        velocity = group["momentum"] * state["momentum_buffer"] - param.grad
        half = x.mT @ velocity - 0.5 * x.mT @ (velocity @ x.mT) @ x
        w = half - half.mT
        size = w.abs().sum(-2).amax(-1)[..., None, None]
        alpha = (2 * _Q / (size + _EPS)).clamp_max(group["lr"])
        y = x + alpha * (x @ w)
        for _ in range(_ITERATIONS):
            y = x + 0.5 * alpha * ((x + y) @ w)
        param.copy_(y)
        velocity.copy_(x @ w)  # to a temporary, not to the state
