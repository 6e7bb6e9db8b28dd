"""Stochastic gradient descent with momentum."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.base.base import Base, Kind, State
from orthoptim.validation import check_bool, check_nonnegative, check_number


class SGD(Base):
    r"""The direction of torch.optim.SGD, bit for bit.

    .. math::
        b_1 = g_1,\quad b_t = μ b_{t-1} + (1-d)\, g_t,\qquad G = b_t \text{ or, with nesterov, } g_t + μ b_t

    Args:
        momentum: μ.
        dampening: d.
        nesterov: whether to look ahead.

    Example:
        >>> SGD(momentum=0.9)
        SGD(momentum=0.9, dampening=0, nesterov=False)
    """

    name = "sgd"
    linear = True

    def __init__(self, momentum: float = 0, dampening: float = 0, nesterov: bool = False) -> None:
        check_nonnegative("momentum", momentum)
        check_number("dampening", dampening)
        check_bool("nesterov", nesterov)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(momentum=momentum, dampening=dampening, nesterov=nesterov)

    @staticmethod
    def buffers(hyperparameters: Mapping[str, Any]) -> dict[str, Kind]:
        """One buffer, if there is momentum."""
        return {"momentum_buffer": "entries"} if hyperparameters["momentum"] != 0 else {}

    @staticmethod
    def advance(grad: Tensor, state: State, t: Tensor, **hyperparameters: Any) -> tuple[Tensor, State]:
        """See :meth:`Base.advance`."""
        momentum, dampening = hyperparameters["momentum"], hyperparameters["dampening"]
        if momentum == 0:
            return grad, {}
        buffer = state["momentum_buffer"].mul(momentum).add_(grad, alpha=1 - dampening)
        if dampening != 0:  # else the zero buffer makes the first one the gradient by itself
            buffer = torch.where(t == 1, grad, buffer)
        g = grad.add(buffer, alpha=momentum) if hyperparameters["nesterov"] else buffer
        return g, {"momentum_buffer": buffer}
