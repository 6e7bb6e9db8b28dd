"""Retractions: from a point Y near the manifold, by a tangent step, back onto it."""

from collections.abc import Callable

import torch
from torch import Tensor

from orthoptim.stiefel.geometry import sym
from orthoptim.stiefel.points import nearest, newton_schulz_step, row_qr


def tangent(x: Tensor, g: Tensor, metric: str = "euclidean") -> Tensor:
    """The Riemannian gradient of G at X.

    G − Sym(GXᴴ)X for the Euclidean metric, G − XGᴴX for the canonical one (on the manifold, twice the relative
    gradient).
    """
    if metric == "euclidean":
        return g - sym(g @ x.mH) @ x
    return g - x @ g.mH @ x


def cholesky(y: Tensor) -> Tensor:
    """L⁻¹Y with YYᴴ = LLᴴ: the rows of Y orthonormalised from the first on, as by QR, mostly by products.

    It loses u·‖YYᴴ‖; one Newton–Schulz step wins that back.
    """
    lower, _ = torch.linalg.cholesky_ex(y @ y.mH)
    rows: Tensor = torch.linalg.solve_triangular(lower, y, upper=False)
    return newton_schulz_step(rows)


RETRACTIONS: dict[str, Callable[[Tensor], Tensor]] = {"qr": row_qr, "polar": nearest, "cholesky": cholesky}
METRICS = ("euclidean", "canonical")


def project_where(mask: Tensor, x: Tensor) -> Tensor:
    """The nearest point of those matrices that the mask (of the batch shape) selects; the others as they are.

    While tracing, all are projected and one of the two is selected; else only those that need it, which asks the
    device which they are. The decomposition would wait for it anyway.
    """
    if torch.compiler.is_compiling() or isinstance(mask, torch._subclasses.FakeTensor):
        return torch.where(mask[..., None, None], nearest(x), x)
    chosen = mask.nonzero(as_tuple=True)
    if chosen[0].numel() == 0:
        return x
    return x.index_put(chosen, nearest(x[chosen]))
