"""The table of learning rates of the page *Choosing*: ``python docs/tools/learning_rates.py``.

For each base and each size of matrices POGO takes 100 steps on two problems, at rates 0.001, 0.003, 0.01, ..., 10 with
a linear decay to zero. A cell is the best rate and, in brackets, the range of rates that go at least 95 % of its way
down from the loss at the start.

*Procrustes*: min ‖AX − B‖²/(2p), deterministic, from a random start. *Layer*: the digits of the package, classified by
X ∈ p×p between two fixed random layers, in batches of 100: stochastic.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

import orthoptim as oo
from orthoptim_experiments.problems.datasets import load

RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
BASES = {"VAdam": oo.VAdam(), "SGD(0.9)": oo.SGD(momentum=0.9), "Adam": oo.Adam(), "Muon": oo.Muon()}
STEPS = 100
Loss = Callable[[Tensor, int], Tensor]


def procrustes(p: int) -> Loss:
    """The same loss in every step."""
    generator = torch.Generator().manual_seed(p)
    a, b = (torch.randn(p, p, generator=generator) for _ in range(2))
    a = a / torch.linalg.matrix_norm(a, 2) + torch.eye(p)
    return lambda x, t: (a @ x - b).square().sum() / (2 * p)


def layer(p: int) -> Loss:
    """Cross-entropy of a batch; of all images for t < 0."""
    generator = torch.Generator().manual_seed(p)
    digits = load("digits8").train
    pixels = digits.pixels.flatten(1) / 16 - 0.3
    hidden = torch.relu(pixels @ torch.randn(64, p, generator=generator) / 4)
    head = torch.randn(p, 10, generator=generator) * (3 / p**0.5)

    def loss(x: Tensor, t: int) -> Tensor:
        rows = slice(None) if t < 0 else slice(100 * (t % 15), 100 * (t % 15) + 100)
        return nn.functional.cross_entropy(torch.relu(hidden[rows] @ x) @ head, digits.labels[rows])

    return loss


def final_loss(loss: Loss, base: oo.Base, lr: float, p: int) -> float:
    """After STEPS steps; at the start for lr = 0."""
    x = nn.Parameter(oo.orthogonalize_(torch.empty(p, p), init="random", generator=torch.Generator().manual_seed(1)))
    opt = oo.POGO([x], lr=lr, base=base)
    schedule = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 1 / STEPS, STEPS)
    for t in range(STEPS if lr else 0):
        opt.zero_grad()
        loss(x, t).backward()
        opt.step()
        schedule.step()
    with torch.no_grad():
        return float(loss(x, -1))


def cell(problem: Callable[[int], Loss], base: oo.Base, p: int) -> str:
    """The best rate and the range of good ones."""
    loss = problem(p)
    start, *ends = (final_loss(loss, base, lr, p) for lr in (0.0, *RATES))
    least = min(ends)
    good = [lr for lr, end in zip(RATES, ends, strict=True) if start - end >= 0.95 * (start - least)]
    return f"{RATES[ends.index(least)]:g} ({min(good):g} – {max(good):g})"


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 32, 128])
    sizes = parser.parse_args().sizes
    torch.set_num_threads(1)
    columns = [(name, problem, p) for name, problem in (("Procrustes", procrustes), ("layer", layer)) for p in sizes]
    print("| base | " + " | ".join(f"{name} {p}×{p}" for name, _, p in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, base in BASES.items():
        print(f"| `{name}` | " + " | ".join(cell(problem, base, p) for _, problem, p in columns) + " |", flush=True)


if __name__ == "__main__":
    main()
