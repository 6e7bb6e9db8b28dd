"""A mixture of experts that predicts the next symbol of a text from those before it.

x = the embeddings of the last symbols, side by side; h = x + Σₑ gₑ(x) · relu(xUₑᵀ)Dₑ, with U and D of shape [E, p, n].
Each expert chooses as many rows of the batch (Zhou et al., 2022), so that all experts are one batched product.
"""

import torch
from torch import Tensor, nn

import orthoptim as oo
from orthoptim_experiments.problems.rotations.text import SYMBOLS


class Experts(nn.Module):
    """The experts and their router.

    Args:
        experts: E.
        p: entries inside of an expert.
        n: entries of x.
        choices: how many experts choose a row, on average.
    """

    def __init__(self, experts: int, p: int, n: int, choices: int) -> None:
        super().__init__()
        self.choices = choices
        self.router = nn.Parameter(torch.randn(experts, n) / n**0.5)
        self.up = nn.Parameter(oo.orthogonalize_(torch.empty(experts, p, n), init="random"))
        self.down = nn.Parameter(oo.orthogonalize_(torch.empty(experts, p, n), init="random"))

    def forward(self, x: Tensor) -> Tensor:
        """What the experts add to each row of x (rows, n)."""
        count = max(1, self.choices * len(x) // len(self.router))
        gates = (x @ self.router.mT).softmax(-1)
        gate, chosen = gates.mT.topk(min(count, len(x)), dim=-1)  # (E, count)
        answer = (x[chosen] @ self.up.mT).relu() @ self.down * gate[..., None]
        return torch.zeros_like(x).index_add(0, chosen.flatten(), answer.flatten(0, 1))


class ExpertModel(nn.Module):
    """Logits of the next symbol, for windows (rows, length) of symbols."""

    def __init__(self, length: int, embedding: int, experts: int, p: int, choices: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(SYMBOLS, embedding))
        self.experts = Experts(experts, p, length * embedding, choices)
        self.head = nn.Linear(length * embedding, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        """See the class."""
        x = self.embedding[symbols].flatten(1)
        logits: Tensor = self.head(x + self.experts(x))
        return logits
