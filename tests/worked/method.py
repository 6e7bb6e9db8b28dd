"""A method of one's own: a clipped leap along the relative gradient, and Newton–Schulz steps back to the manifold."""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim.base import State
from orthoptim.optim.common_options import CommonOptions
from orthoptim.optim.orthoptimizer import Params
from orthoptim.stiefel import ColumnSums, Direction, largest, square_norm, subtract_identity


class LeapAndPolish(oo.Orthoptimizer):
    """Y = X − ηR with ‖ηR‖_F ≤ 1, then Y ← Y − ½(YYᴴ − I)Y, ``polish`` times.

    Args:
        {params}
        lr: η.
        base: turns the gradient into the direction.
        polish: the number of Newton–Schulz steps.
        {common}
    """

    algorithm = "leap-and-polish"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        base: oo.Base = oo.SGD(),  # noqa: B008  (never changed)
        *,
        polish: int = 2,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, lr, base, polish=polish, **common)

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> ColumnSums[oo.Update]:
        g = direction.matrices
        a, b, entry = yield [x @ x.mH, x @ g.mH, largest(g)]
        unit = entry.clamp_min(torch.finfo(entry.dtype).tiny)  # G over its largest entry: its square does not overflow
        r = torch.baddbmm(0.5 * a @ g, b, x, alpha=-0.5) / unit[:, None, None]
        (square,) = yield [square_norm(r)]
        eta = (lr if direction.scale is None else lr * direction.scale) * unit
        length = torch.minimum(eta, square.rsqrt())
        y = x - length[:, None, None] * r
        for _ in range(group["polish"]):
            (gram,) = yield [y @ y.mH]
            y = torch.baddbmm(y, subtract_identity(gram), y, alpha=-0.5)
        return oo.Update(y, clipped=length != eta)
