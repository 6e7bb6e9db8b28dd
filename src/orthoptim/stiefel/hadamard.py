"""Hadamard matrices: orthogonal ones whose entries are all of the same size, which spread any vector over all axes.

Sylvester doubles, H ↦ [[H, H], [H, −H]]; Paley builds one of order q + 1 for a prime q ≡ 3 mod 4, and one of order
2(q + 1) for a prime q ≡ 1 mod 4, from the squares modulo q.
"""

import math

import torch
from torch import Tensor


def hadamard(n: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """An orthogonal n×n matrix with entries ±1/√n.

    Raises:
        ValueError: if n is not 2ᵏ times an order that Paley's constructions have.

    Example:
        >>> hadamard(4) * 2
        tensor([[ 1.,  1.,  1.,  1.],
                [-1.,  1., -1.,  1.],
                [-1.,  1.,  1., -1.],
                [-1., -1.,  1.,  1.]])
    """
    order, doublings = n, 0
    while not _has_block(order):
        if order % 2 or order == 0:
            raise ValueError(
                f"no Hadamard matrix of order {n} is known here: orders are 2ᵏ times 1, q + 1 for a prime q ≡ 3 mod 4, "
                "or 2(q + 1) for a prime q ≡ 1 mod 4, such as 12, 20, 28 and 36"
            )
        order, doublings = order // 2, doublings + 1
    h = _block(order)
    for _ in range(doublings):
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return (h / math.sqrt(n)).to(dtype=dtype or torch.get_default_dtype(), device=device)


def _has_block(order: int) -> bool:
    if order == 1:
        return True
    if order % 4:
        return False
    return _is_prime(order - 1) or (_is_prime(order // 2 - 1) and order // 2 % 4 == 2)


def _block(order: int) -> Tensor:
    """Entries ±1, in double precision, of an order that cannot be halved, or need not be."""
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if _is_prime(order - 1):  # which is 3 mod 4
        core = _conference(order - 1)
        core[1:, 0] = -1
        return core + torch.eye(order, dtype=torch.float64)
    core = _conference(order // 2 - 1)
    double = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    diagonal = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    return torch.kron(core, double) + torch.kron(torch.eye(order // 2, dtype=torch.float64), diagonal)


def _conference(q: int) -> Tensor:
    """[[0, 1ᵀ], [1, χ(i − j)]] with χ the quadratic character modulo q."""
    squares = {i * i % q for i in range(1, q)}
    character = torch.tensor([0.0, *(1.0 if i in squares else -1.0 for i in range(1, q))], dtype=torch.float64)
    index = torch.arange(q)
    core = torch.ones(q + 1, q + 1, dtype=torch.float64)
    core[0, 0] = 0
    core[1:, 1:] = character[(index[:, None] - index) % q]
    return core


def _is_prime(q: int) -> bool:
    return q > 1 and all(q % d for d in range(2, math.isqrt(q) + 1))
