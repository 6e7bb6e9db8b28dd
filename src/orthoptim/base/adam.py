"""Adam, entry by entry: not equivariant; for comparison."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.base.base import Base, Kind, State
from orthoptim.base.vadam import bias_correction
from orthoptim.stiefel import lerp
from orthoptim.validation import check_betas, check_nonnegative


class Adam(Base):
    r"""The direction of torch.optim.Adam.

    .. math::
        m_t = β_1 m_{t-1} + (1-β_1) g_t,\quad v_t = β_2 v_{t-1} + (1-β_2) |g_t|^2,\qquad
        G = \frac{m_t / (1-β_1^t)}{\sqrt{v_t / (1-β_2^t)} + ε}

    Its normalisation depends on the coordinates, so POGO with Adam is not equivariant under X → O₁XO₂: prefer
    :class:`VAdam`. For complex matrices v holds squared moduli, where torch treats real and imaginary parts apart.

    Args:
        betas: β₁ and β₂.
        eps: ε.

    Example:
        >>> Adam(betas=(0.8, 0.99))
        Adam(betas=(0.8, 0.99), eps=1e-08)
    """

    name = "adam"

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        check_betas(betas)
        check_nonnegative("eps", eps)
        super().__init__(betas=betas, eps=eps)

    @staticmethod
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """First moment per entry, second moment per entry and real."""
        return {"exp_avg": "entries", "exp_avg_sq": "moduli"}

    @staticmethod
    def advance(grad: Tensor, state: State, t: Tensor, **hyperparameters: Any) -> tuple[Tensor, State]:
        """See :meth:`Base.advance`."""
        (beta1, beta2), eps = hyperparameters["betas"], hyperparameters["eps"]
        exp_avg = lerp(state["exp_avg"], grad, 1 - beta1)
        square = (grad * grad.conj()).real
        exp_avg_sq = state["exp_avg_sq"].lerp(square, 1 - beta2).clamp_(max=torch.finfo(square.dtype).max)
        correction1, correction2 = (bias_correction(beta, t) for beta in (beta1, beta2))
        root = exp_avg_sq.sqrt() / correction2.sqrt()
        g = exp_avg / (correction1 * (root + eps)).clamp_min(torch.finfo(root.dtype).tiny)
        return g, {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
