"""Retractions: from a point Y near the manifold, by a tangent step, back onto it.

A retraction of what has no full rank (to working precision) is arbitrary, and decompositions raise on what is not
finite. Either becomes NaN for that matrix alone: the step then leaves it as it was and counts it as skipped.

They are written as sums over columns, see :mod:`orthoptim.stiefel.sums`: ``polar`` and ``cholesky`` decompose p×p
matrices alone; ``qr`` needs all columns.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.stiefel.batches import max_entry, subtract_identity
from orthoptim.stiefel.geometry import sym
from orthoptim.stiefel.points import row_qr_factors
from orthoptim.stiefel.policies import newton_schulz
from orthoptim.stiefel.sums import ColumnSums, largest


class Retracted(NamedTuple):
    """The retraction of Y, and a finiteness probe: a number per matrix, the same for all pieces, finite where it is."""

    x: Tensor
    finiteness_probe: Tensor


def tangent(x: Tensor, g: Tensor, metric: str = "euclidean") -> Tensor:
    """The Riemannian gradient of G at X.

    G − Sym(GXᴴ)X for the Euclidean metric, G − XGᴴX for the canonical one (on the manifold, twice the relative
    gradient).
    """
    if metric == "euclidean":
        return g - sym(g @ x.mH) @ x
    return g - x @ g.mH @ x


def tangent_leap(x: Tensor, g: Tensor, b: Tensor, factor: Tensor, metric: str = "euclidean") -> Tensor:
    """Y = X − factor·D with the Riemannian gradient D of :func:`tangent`, given B = XGᴴ.

    The factor is a number, or (B, 1, 1).
    """
    return torch.baddbmm(x - factor * g, factor * (sym(b) if metric == "euclidean" else b), x)


def qr(y: Tensor) -> ColumnSums[Retracted]:
    """The rows of Y orthonormalised from the first on, by Householder reflections of whole matrices."""
    y = yield _rescaled(y)
    y, finite = _identity_unless_finite(y)
    rows, pivots = row_qr_factors(y)
    usable = finite & full_rank(pivots)
    return Retracted(_nan_unless(usable, rows), torch.where(usable, 0.0, torch.nan))


def polar(y: Tensor) -> ColumnSums[Retracted]:
    """The nearest point (YYᴴ)^(−½)Y, up to u times the condition number of YYᴴ, and orthonormal to rounding.

    YYᴴ knows singular values down to √u of the largest. Those below are lifted first, and are known from then on; so Y
    may have any condition number below 1/(4pu), as with a singular value decomposition of Y. That takes 1.2 times as
    long for square matrices, and 0.6 times for 64×576.
    """
    y = yield _rescaled(y)
    (gram,) = yield [y @ y.mH]
    y = whitening(gram, "polar", lift=True) @ y
    (gram,) = yield [y @ y.mH]
    root = whitening(gram, "polar")
    y = root @ y
    (gram,) = yield [y @ y.mH]
    q = newton_schulz(subtract_identity(gram), 3)  # whitening lost u times the condition number of YYᴴ
    return Retracted(y + q @ y, root.real.sum((-2, -1)))


def cholesky(y: Tensor) -> ColumnSums[Retracted]:
    """L⁻¹Y with YYᴴ = LLᴴ: the rows of Y orthonormalised from the first on, as by QR, mostly by products.

    It loses u times the condition number of YYᴴ; doing it again wins that back.
    """
    y = yield _rescaled(y)
    (gram,) = yield [y @ y.mH]
    y = whitening(gram, "cholesky") @ y
    (gram,) = yield [y @ y.mH]
    factor = whitening(gram, "cholesky")
    return Retracted(factor @ y, factor.real.sum((-2, -1)))


RETRACTIONS: dict[str, Callable[[Tensor], ColumnSums[Retracted]]] = {"qr": qr, "polar": polar, "cholesky": cholesky}
METRICS = ("euclidean", "canonical")


def whitening(gram: Tensor, retraction: str, lift: bool = False) -> Tensor:
    """The p×p matrix W such that WY is the retraction of Y, from YYᴴ alone.

    It is L⁻¹ where YYᴴ = LLᴴ, and (YYᴴ)^(−½) for ``polar``. It loses u times the condition number of YYᴴ: do it twice.
    NaN where YYᴴ is not positive definite to working precision.

    Args:
        gram: YYᴴ.
        retraction: ``"polar"`` or ``"cholesky"``.
        lift: whether eigenvalues that are lost in rounding count as the least that are not, for ``polar``.
    """
    gram, finite = _identity_unless_finite(gram)
    if retraction == "polar":
        values, vectors = torch.linalg.eigh(gram)
        if lift:
            values = torch.maximum(values, 2 * _rounding(values) * values.amax(-1, keepdim=True))
        usable = finite & full_rank(values)
        root = torch.where(usable[..., None], values, 1).rsqrt()
        return _nan_unless(usable, (vectors * root[..., None, :]) @ vectors.mH)
    lower, info = torch.linalg.cholesky_ex(gram)
    usable = finite & (info == 0) & full_rank(lower.diagonal(dim1=-2, dim2=-1).real.square())
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    lower = torch.where(usable[..., None, None], lower, identity)
    return _nan_unless(usable, torch.linalg.solve_triangular(lower, identity, upper=False))


def full_rank(values: Tensor) -> Tensor:
    """Whether the least of p singular values, pivots or eigenvalues (..., p) is more than rounding of the largest."""
    return values.amin(-1) > _rounding(values) * values.amax(-1)


def project_where(mask: Tensor, x: Tensor) -> ColumnSums[Retracted]:
    """The nearest point of those matrices that the mask (of the batch shape) selects; the others as they are.

    The probe is zero for the others. While tracing, all are projected and one of the two is selected; else only those
    that need it and their neighbours in memory, which asks the device which they are. The decomposition would wait for
    it anyway.

    The last bits of a decomposition depend on where its matrix begins in memory, to 64 bytes. So runs of neighbours are
    decomposed together that begin at multiples of that: which others are projected does not show in a matrix.
    """
    if torch.compiler.is_compiling() or isinstance(mask, torch._subclasses.FakeTensor):
        near, probe = yield polar(x)
        return Retracted(torch.where(mask[..., None, None], near, x), torch.where(mask, probe, 0))
    matrices, selected = x.reshape(mask.numel(), *x.shape[-2:]), mask.reshape(-1)
    none = torch.zeros(selected.shape, dtype=x.real.dtype, device=x.device)
    run = 64 // math.gcd(64, x.shape[-2] * x.real.itemsize)  # the eigenvalues are the least that is written
    runs = torch.nn.functional.pad(selected, (0, -selected.numel() % run)).reshape(-1, run)
    members = runs.any(1, keepdim=True).expand_as(runs).flatten()[: selected.numel()].nonzero()[:, 0]
    if members.numel() == 0:
        return Retracted(x, none.reshape(mask.shape))
    chosen, before = selected[members], matrices[members]
    near, probe = yield polar(before)
    new = matrices.index_put((members,), torch.where(chosen[:, None, None], near, before))
    return Retracted(
        new.reshape(x.shape), none.index_put((members,), torch.where(chosen, probe, 0)).reshape(mask.shape)
    )


def _rounding(values: Tensor) -> float:
    """How much of the largest of p values rounding may leave of a zero."""
    rounding: float = 4 * values.shape[-1] * torch.finfo(values.dtype).eps
    return rounding


def _rescaled(y: Tensor) -> ColumnSums[Tensor]:
    """Matrices, scaled by a power of two where they are finite, which rounds nothing and changes no retraction.

    The largest entry is then of order one, so that no square overflows.
    """
    (size,) = yield [largest(y)]
    size = torch.where(torch.isfinite(size), size, 1).clamp_min(torch.finfo(size.dtype).tiny)
    mantissa, _ = torch.frexp(size)
    # 4: the power of two of the largest number is no denormal
    return y * (4 * mantissa / size)[..., None, None]


def _identity_unless_finite(y: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices to be decomposed, and which of them are finite: in the place of the others stands the identity."""
    finite = torch.isfinite(max_entry(y))
    identity = torch.eye(*y.shape[-2:], dtype=y.dtype, device=y.device)
    return torch.where(finite[..., None, None], y, identity), finite


def _nan_unless(condition: Tensor, a: Tensor) -> Tensor:
    return torch.where(condition[..., None, None], a, torch.nan)
