"""SLPG: a tangent step and one approximate polar step."""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import SGD, Base, Direction, Kind, State
from orthoptim.base.bb import quotients
from orthoptim.base.secant import step_length
from orthoptim.functional import project_
from orthoptim.optim.common_options import CommonOptions
from orthoptim.optim.orthoptimizer import Orthoptimizer, Params
from orthoptim.stiefel import ColumnSums, Update
from orthoptim.validation import check_bool

# Beyond 5 one landing maps an eigenvalue 1 + c of YYᴴ to a larger one: (1 − c/2)²(1 + c) > 1 + c.
_REACH = 5.0
_POLICY = stiefel.policy("half")._replace(reach=_REACH)


class SLPG(Orthoptimizer):
    r"""The sequential linearised proximal gradient method, for smooth functions.

    .. math::
        D = G - \operatorname{Sym}(GX^H)X,\quad Y = X - ηD,\qquad X ← (\tfrac32 I - \tfrac12 YY^H)Y

    POGO's nearest relative: the same landing with λ = ½, but off the manifold D has a normal component where the
    relative gradient has none. Only matrix products; feasible for small steps, and far away for large ones. A Y with
    ‖YYᴴ‖₂ > 5, from which landings diverge, is scaled down first and counted as rescued: a matrix of full rank that was
    written far from the manifold comes back.

    Args:
        {params}
        lr: η.
        base: turns the gradient into the direction G.
        barzilai_borwein: multiply η by the short Barzilai–Borwein step length, the absolute value of ⟨S,Y⟩/⟨Y,Y⟩ with S
            and Y the last changes of X and D, and land twice, as the authors' package does; for deterministic problems,
            with lr = 1.
        project_at_end: :meth:`finish` then projects onto the manifold.
        {common}

    Example:
        >>> x = torch.nn.Parameter(torch.eye(2, 3))
        >>> opt = SLPG([x], lr=0.1, project_at_end=True)
        >>> x.grad = torch.ones(2, 3)
        >>> opt.step()
        >>> opt.finish()
    """

    algorithm = "slpg"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        base: Base = SGD(),  # noqa: B008  (never changed)
        *,
        barzilai_borwein: bool = False,
        project_at_end: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, lr, base, barzilai_borwein=barzilai_borwein, project_at_end=project_at_end, **common)

    @staticmethod
    def buffers(group: Mapping[str, Any]) -> dict[str, Kind]:
        """What the Barzilai–Borwein quotients need."""
        if not group["barzilai_borwein"]:
            return {}
        return {"slpg_point": "entries", "slpg_direction": "entries", "slpg_length": "matrices"}

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> ColumnSums[Update]:
        """See :meth:`Orthoptimizer.update`."""
        new_state: State = {}
        if group["barzilai_borwein"]:  # which has buffers: the matrices are whole
            d = stiefel.tangent(x, direction.whole())
            _, short = quotients(x - state["slpg_point"], d - state["slpg_direction"])
            length = step_length(short, d, state["slpg_length"], t)
            y = x - lr * length[..., None, None] * d
            new_state = {"slpg_point": x, "slpg_direction": d, "slpg_length": length}
        else:
            (b,) = yield [x @ direction.matrices.mH]
            y = stiefel.tangent_leap(x, direction.matrices, b, direction.times(lr))
        (gram,) = yield [y @ y.mH]
        new, rescued, probe = scale_and_land(y, gram)
        if group["barzilai_borwein"]:
            new = stiefel.newton_schulz_step(new)
        return Update(new, new_state, rescued=rescued, finiteness_probe=probe)

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        check_bool("barzilai_borwein", group["barzilai_borwein"])
        check_bool("project_at_end", group["project_at_end"])

    @torch.no_grad()
    def finish(self) -> None:
        """Call once at the end of training: projects the groups that ask for it."""
        for group in self.param_groups:
            if group.get("project_at_end"):
                for param in group["params"]:
                    project_(param, view=group["view"], side=group["side"], scale=group["scale"])


def scale_and_land(y: Tensor, gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """X⁺ = (3/2 I − ½YYᴴ)Y, which Y had to be scaled down first, and a finiteness probe.

    Args:
        y: the matrices, or pieces of their columns; their memory is used.
        gram: YYᴴ; its memory is used.
    """
    trace = gram.diagonal(dim1=-2, dim2=-1).real.sum(-1)
    # the trace bounds the largest eigenvalue, and overflows later than the norm does
    scale = torch.where(trace > _REACH * gram.shape[-1], (2 / trace).sqrt(), 1)
    y = y.mul_(scale[:, None, None])
    c = stiefel.subtract_identity(gram.mul_((scale * scale)[:, None, None]))
    landing = stiefel.land(c, _POLICY)
    new = torch.baddbmm(y, landing.q, y, alpha=landing.weight)
    rescued = scale < 1 if landing.rescued is None else landing.rescued | (scale < 1)
    return new, rescued, landing.q.real.sum((-2, -1)) + trace
