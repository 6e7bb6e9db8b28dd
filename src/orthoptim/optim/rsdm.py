"""RSDM: Riemannian descent on random submanifolds."""

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import SGD, Base, Direction, Kind, State
from orthoptim.literals import SAMPLINGS, Sampling
from orthoptim.optim.common_options import CommonOptions
from orthoptim.optim.orthoptimizer import Orthoptimizer, Params
from orthoptim.stiefel import Update, draws
from orthoptim.validation import check_choice, check_integer
from orthoptim.views import View

_TOLERANCE = 1e-3  # of ‖X‖_F²/p; rounding changes it by less in a hundred thousand steps


class RSDM(Orthoptimizer):
    r"""Random submanifold descent: rotate X within a random r-dimensional subspace of its n columns.

    .. math::
        K = \operatorname{Skew}(P G^H X P^H),\quad YR = I - ηK \text{ (QR)},\qquad X ← X + XP^H(Y^H - I)P

    with a random frame P (r×n). It acts on the n side: acting on the p side would never change the row space. The
    decomposition has size r instead of p, and each step changes only r of n dimensions. Iterates are on the manifold up
    to rounding, which accumulates: in long float32 runs the distance grows.

    A rotation does not change XXᴴ, so no step brings back a matrix that was written off the manifold. Only its norm is
    corrected, which costs one pass: if ‖X‖_F² differs from p by more than 1e-3, X is rescaled, and the step is counted
    as rescued if it differed by a twentieth. Call :func:`orthogonalize_` after you have written other values.

    The frames are a pure function of ``seed``, a fingerprint of each matrix's initial value (``stream``, in the state)
    and its step count: resumed runs and replicas draw the same. Matrices that start equal are given equal frames.

    Args:
        {params}
        lr: η.
        r: dimension of the random subspace, 1 ≤ r ≤ n; there is no default. (Real matrices need r ≥ 2 to move.)
        base: turns the gradient into the direction G.
        sampling: ``"orthogonal"``, a uniformly random frame, or ``"permutation"``, r random columns (cheaper).
        seed: seed of the random frames.
        {common}

    Example:
        >>> x = torch.nn.Parameter(torch.eye(2, 4))
        >>> opt = RSDM([x], lr=0.1, r=3)
        >>> x.grad = torch.ones(2, 4)
        >>> opt.step()
    """

    algorithm = "rsdm"
    decomposes = True

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        r: int | None = None,
        base: Base = SGD(),  # noqa: B008  (never changed)
        *,
        sampling: Sampling = "orthogonal",
        seed: int = 0,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, lr, base, r=r, sampling=sampling, seed=seed, **common)

    @staticmethod
    def buffers(group: Mapping[str, Any]) -> dict[str, Kind]:
        """The stream of each matrix's draws."""
        return {"stream": "streams"}

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> Update:
        """See :meth:`Orthoptimizer.update`."""
        g, r, n, seed = direction.whole(), group["r"], x.shape[-1], group["seed"]
        x, rescued = _rescale(x)
        stream = torch.where(t == 1, draws.fingerprint(x), state["stream"])
        if group["sampling"] == "permutation":
            index = draws.columns(stream, t, seed, r, n)[..., None, :]
            xp, gp = torch.take_along_dim(x, index, -1), torch.take_along_dim(g, index, -1)
            new = x.scatter(-1, index.expand_as(xp), xp @ _rotation(xp, gp, lr).mH)
            return Update(new, {"stream": stream}, rescued=rescued)
        frame = draws.subspace(stream, t, seed, r, n, x.dtype)
        xp, gp = x @ frame.mH, g @ frame.mH
        change = stiefel.subtract_identity(_rotation(xp, gp, lr)).mH
        return Update(x + (xp @ change) @ frame, {"stream": stream}, rescued=rescued)

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        check_choice("sampling", group["sampling"], SAMPLINGS)
        check_integer("seed", group["seed"])
        if group["r"] is None:
            raise ValueError("RSDM needs r, the dimension of the random subspace: RSDM(params, lr, r=...)")
        check_integer("r", group["r"])
        view = View.of(group["view"])
        widths = [part.n for param in group["params"] for part in view.parts(param.shape, group["side"])]
        n = min(widths, default=group["r"])
        if not 1 <= group["r"] <= n:
            raise ValueError(f"Invalid r: {group['r']}; it is a number of dimensions, from 1 to n = {n}")


def _rotation(xp: Tensor, gp: Tensor, lr: Tensor) -> Tensor:
    """Y (r×r), the retraction of −ηK from the identity."""
    k = stiefel.skew(gp.mH @ xp)
    identity = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    return stiefel.row_qr((identity - lr * k).mH).mH


def _rescale(x: Tensor) -> tuple[Tensor, Tensor]:
    """X with ‖X‖_F² = p, bit for bit as it was where that holds already, and where it was far from that."""
    p, size = x.shape[-2], stiefel.norm(x)
    ratio = size / p**0.5
    wrong = ~((ratio * ratio - 1).abs() <= _TOLERANCE)
    return x / torch.where(wrong, ratio, 1)[..., None, None], stiefel.is_scaled(size * size, p)
