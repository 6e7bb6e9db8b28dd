"""A small network with constrained and ordinary parameters, and its training in one process or in many."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import orthoptim as oo

PATTERNS = {"0.weight": "matrix", "2.weight": "matrix", "4.weight": "matrix"}


def network() -> nn.Sequential:
    torch.manual_seed(1)
    layers = nn.Linear(40, 6), nn.Tanh(), nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 64)
    return oo.orthogonalize_(nn.Sequential(*layers), PATTERNS)


def optimizer(model: nn.Module, **options) -> oo.POGO:
    return oo.POGO(oo.param_groups(model, PATTERNS, lr=0.1, rest={"algorithm": "adamw", "lr": 1e-2}, **options))


def batch(t: int, rows: slice = slice(0, 8)) -> torch.Tensor:
    return torch.randn(8, 40, generator=torch.Generator().manual_seed(t))[rows]


def train(model: nn.Module, opt: torch.optim.Optimizer, steps: int, rows: slice = slice(0, 8)) -> None:
    for t in range(steps):
        opt.zero_grad()
        out = model(batch(t, rows))
        out.float().square().sin().mean().backward()
        opt.step()


def alone(steps: int) -> list[torch.Tensor]:
    model = network()
    train(model, optimizer(model), steps)
    return [param.detach() for param in model.parameters()]


def max_error(model: nn.Module, expected: list[torch.Tensor]) -> float:
    whole = [p.detach().full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]
    return max(float((a - b).abs().max()) for a, b in zip(whole, expected, strict=True))


def rows_of(rank: int, world: int) -> slice:
    return slice(8 // world * rank, 8 // world * (rank + 1))
