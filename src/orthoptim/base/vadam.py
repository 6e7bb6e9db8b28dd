"""VectorAdam: Adam with one second moment per matrix."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.base.base import Base, Kind, State
from orthoptim.stiefel.batches import lerp, pointwise, square_norm, square_norms
from orthoptim.validation import check_betas, check_nonnegative


class VAdam(Base):
    r"""Adam whose second moment is one scalar per matrix, so that it only rescales the first.

    .. math::
        m_t = β_1 m_{t-1} + (1-β_1) g_t,\quad v_t = β_2 v_{t-1} + (1-β_2) ‖g_t‖_F^2,\qquad
        G = \frac{m_t / (1-β_1^t)}{\sqrt{v_t / (1-β_2^t)} + ε}

    It is equivariant under X → O₁XO₂, and ‖G‖_F is about one: the learning rate is the length of the leap.

    Like Adam it remembers an outlier for 1/(1−β₂) steps times the logarithm of its size: after one finite gradient 10²⁰
    times as large as the others, a matrix hardly moves for tens of thousands of steps. These steps are taken, not
    skipped, so that no counter shows them. Where gradients have such outliers, clip them
    (``torch.nn.utils.clip_grad_norm_``).

    Args:
        betas: β₁ and β₂.
        eps: ε.

    Example:
        >>> VAdam()
        VAdam(betas=(0.9, 0.999), eps=1e-08)
    """

    name = "vadam"
    normalized = True

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        check_betas(betas)
        check_nonnegative("eps", eps)
        super().__init__(betas=betas, eps=eps)

    @staticmethod
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """First moment per entry, second moment per matrix."""
        return {"exp_avg": "entries", "exp_avg_sq": "matrices"}

    @staticmethod
    def advance(grad: Tensor, state: State, t: Tensor, **hyperparameters: Any) -> tuple[Tensor, State]:
        """See :meth:`Base.advance`."""
        exp_avg = lerp(state["exp_avg"], grad, 1 - hyperparameters["betas"][0])
        return exp_avg, {"exp_avg": exp_avg}

    @staticmethod
    def statistic(grad: Tensor) -> Tensor:
        """‖grad‖_F²."""
        return square_norm(grad)

    @staticmethod
    def scale(statistic: Tensor | None, state: State, t: Tensor, **hyperparameters: Any) -> tuple[Tensor, State]:
        """See :meth:`Base.scale`."""
        (beta1, beta2), eps = hyperparameters["betas"], hyperparameters["eps"]
        assert statistic is not None
        scale, exp_avg_sq = _scale(statistic, state["exp_avg_sq"], t, beta1=beta1, beta2=beta2, eps=eps)
        return scale, {"exp_avg_sq": exp_avg_sq}

    @staticmethod
    def scale_on_host(grad: Tensor, state: State, t: Tensor, **hyperparameters: Any) -> tuple[float, State]:
        """See :meth:`Base.scale_on_host`; as ``_scale``, which says why."""
        (beta1, beta2), eps = hyperparameters["betas"], hyperparameters["eps"]
        info, steps = torch.finfo(grad.dtype), t.item()
        square, last = square_norms(grad, on_host=True), state["exp_avg_sq"].item()
        correction1 = -math.expm1(steps * math.log(beta1)) if beta1 > 0 else 1.0
        correction2 = -math.expm1(steps * math.log(beta2)) if beta2 > 0 else 1.0
        exp_avg_sq = min(last + (1 - beta2) * (square - last), info.max)
        root = math.sqrt(exp_avg_sq / correction2) if exp_avg_sq >= 0 else math.nan
        if eps < info.tiny**0.5:
            root = max(root, info.tiny**0.5)
        scale = min(1 / (correction1 * (root + eps)), info.max)
        return scale, {"exp_avg_sq": state["exp_avg_sq"].new_full((1,), exp_avg_sq)}


@pointwise
def _scale(
    square: Tensor, exp_avg_sq: Tensor, t: Tensor, *, beta1: float, beta2: float, eps: float
) -> tuple[Tensor, Tensor]:
    # a square that overflows must not stay infinite: the matrix would never move again
    exp_avg_sq = exp_avg_sq.lerp(square, 1 - beta2).clamp_(max=torch.finfo(square.dtype).max)
    root = exp_avg_sq.sqrt() / bias_correction(beta2, t).sqrt()
    # squares below were flushed to zero: the quotient of a small gradient and zero would be a huge direction
    least = torch.finfo(square.dtype).tiny ** 0.5
    if eps < least:
        root = root.clamp_min(least)
    return (bias_correction(beta1, t) * (root + eps)).reciprocal(), exp_avg_sq


def bias_correction(beta: float, t: Tensor) -> Tensor:
    """1 − βᵗ per matrix.

    By expm1: at t = 1 and β = 0.999 the plain formula loses four of float32's seven digits.
    """
    return (t * (math.log(beta) if beta > 0 else -math.inf)).expm1_().neg_()
