"""Muon: momentum, then an approximate polar factor of each matrix."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.base.base import Base, Kind, State
from orthoptim.stiefel import Direction, lerp, max_entry
from orthoptim.validation import check_bool, check_nonnegative, check_positive_integer

# The quintic of torch.optim.Muon: it drives every singular value to about [0.7, 1.2] in five steps.
_QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon(Base):
    r"""The direction of torch.optim.Muon, for each matrix of a batch by itself.

    .. math::
        b_t = μ b_{t-1} + (1-μ) g_t,\qquad G ≈ \operatorname{polar}(b_t) \text{ or, with nesterov, }
        \operatorname{polar}((1-μ) g_t + μ b_t)

    Args:
        momentum: μ.
        nesterov: whether to look ahead.
        steps: Newton–Schulz steps.

    Example:
        >>> Muon(steps=6)
        Muon(momentum=0.95, nesterov=True, steps=6)
    """

    name = "muon"
    whole_matrix = True

    def __init__(self, momentum: float = 0.95, nesterov: bool = True, steps: int = 5) -> None:
        check_nonnegative("momentum", momentum)
        if momentum > 1:
            raise ValueError(f"Invalid momentum value: {momentum}; Muon's is a weight in [0, 1]")
        check_bool("nesterov", nesterov)
        check_positive_integer("steps", steps)
        super().__init__(momentum=momentum, nesterov=nesterov, steps=steps)

    @staticmethod
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """One buffer."""
        return {"momentum_buffer": "entries"}

    @classmethod
    def direction(
        cls, x: Tensor, grad: Tensor, state: State, t: Tensor, **hyperparameters: Any
    ) -> tuple[Direction, State]:
        """See :meth:`Base.direction`."""
        momentum = hyperparameters["momentum"]
        buffer = lerp(state["momentum_buffer"], grad, 1 - momentum)
        g = lerp(grad, buffer, momentum) if hyperparameters["nesterov"] else buffer
        return Direction(_approximate_polar(g, hyperparameters["steps"])), {"momentum_buffer": buffer}


def _approximate_polar(g: Tensor, steps: int) -> Tensor:
    a, b, c = _QUINTIC
    tiny = torch.finfo(g.real.dtype).tiny
    g = g / max_entry(g).clamp_min(tiny)[..., None, None]  # first by the largest entry: the norm cannot overflow
    g = g / torch.linalg.matrix_norm(g).clamp_min(tiny)[..., None, None]
    for _ in range(steps):
        gram = g @ g.mH
        g = a * g + (b * gram + c * (gram @ gram)) @ g
    return g
