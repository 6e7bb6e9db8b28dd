"""Retractions: from a point Y near the manifold, by a tangent step, back onto it.

A retraction of what has no full rank (to working precision) is arbitrary, and decompositions raise on what is not
finite. Either becomes NaN for that matrix alone: the step then leaves it as it was and counts it as skipped.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orthoptim.stiefel.geometry import max_entry, sym
from orthoptim.stiefel.points import newton_schulz_step, row_qr_factors


def tangent(x: Tensor, g: Tensor, metric: str = "euclidean") -> Tensor:
    """The Riemannian gradient of G at X.

    G − Sym(GXᴴ)X for the Euclidean metric, G − XGᴴX for the canonical one (on the manifold, twice the relative
    gradient).
    """
    if metric == "euclidean":
        return g - sym(g @ x.mH) @ x
    return g - x @ g.mH @ x


def qr(y: Tensor) -> Tensor:
    """The rows of Y orthonormalised from the first on, by Householder reflections."""
    y, finite = _prepare(y)
    rows, pivots = row_qr_factors(y)
    return _nan_unless(finite & full_rank(pivots), rows)


def polar(y: Tensor) -> Tensor:
    """The nearest point, by the singular value decomposition."""
    y, finite = _prepare(y)
    u, singular, vh = torch.linalg.svd(y, full_matrices=False)
    # LAPACK's U and V are orthonormal to a few u·√p each; one step squares what is left
    return _nan_unless(finite & full_rank(singular), newton_schulz_step(u @ vh))


def cholesky(y: Tensor) -> Tensor:
    """L⁻¹Y with YYᴴ = LLᴴ: the rows of Y orthonormalised from the first on, as by QR, mostly by products.

    It loses u times the condition number of YYᴴ; doing it again wins that back.
    """
    y, finite = _prepare(y)
    for _ in range(2):
        y = whitening(y @ y.mH, "cholesky") @ y
    return _nan_unless(finite, y)


RETRACTIONS: dict[str, Callable[[Tensor], Tensor]] = {"qr": qr, "polar": polar, "cholesky": cholesky}
METRICS = ("euclidean", "canonical")


def whitening(gram: Tensor, retraction: str) -> Tensor:
    """The p×p matrix W such that WY is the retraction of Y, from YYᴴ alone.

    It is L⁻¹ where YYᴴ = LLᴴ, and (YYᴴ)^(−½) for ``polar``; ``qr`` is ``cholesky``, as L is the adjoint of the R with
    positive diagonal. It loses u times the condition number of YYᴴ: do it twice. NaN where YYᴴ is not positive definite
    to working precision.
    """
    gram, finite = _prepare(gram, rescale=False)
    if retraction == "polar":
        values, vectors = torch.linalg.eigh(gram)
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
    rounding = 4 * values.shape[-1] * torch.finfo(values.dtype).eps
    return values.amin(-1) > rounding * values.amax(-1)


def project_where(mask: Tensor, x: Tensor) -> Tensor:
    """The nearest point of those matrices that the mask (of the batch shape) selects; the others as they are.

    While tracing, all are projected and one of the two is selected; else only those that need it and their neighbours
    in memory, which asks the device which they are. The decomposition would wait for it anyway.

    The last bits of a decomposition depend on where its matrix begins in memory, to 64 bytes. So runs of neighbours are
    decomposed together that begin at multiples of that: which others are projected does not show in a matrix.
    """
    if torch.compiler.is_compiling() or isinstance(mask, torch._subclasses.FakeTensor):
        return torch.where(mask[..., None, None], polar(x), x)
    matrices, selected = x.reshape(-1, *x.shape[-2:]), mask.reshape(-1)
    run = 64 // math.gcd(64, x.shape[-2] * x.real.itemsize)  # the singular values are the least that is written
    runs = torch.nn.functional.pad(selected, (0, -selected.numel() % run)).reshape(-1, run)
    members = runs.any(1, keepdim=True).expand_as(runs).flatten()[: selected.numel()].nonzero()[:, 0]
    if members.numel() == 0:
        return x
    near = matrices[members]
    projected = torch.where(selected[members, None, None], polar(near), near)
    return matrices.index_put((members,), projected).reshape(x.shape)


def project_columns_where(mask: Tensor, x: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """``project_where`` of some columns, given XXᴴ; and a number for each matrix that is finite only if these are."""
    chosen = mask.nonzero(as_tuple=True)[0]
    witness = gram.real.diagonal(dim1=-2, dim2=-1).sum(-1)
    if chosen.numel() == 0:
        return x, witness
    root = whitening(gram[chosen], "polar")
    factor = whitening(root @ gram[chosen] @ root, "polar") @ root
    return x.index_put((chosen,), factor @ x[chosen]), witness.index_put((chosen,), factor.real.sum((-2, -1)))


def _prepare(y: Tensor, rescale: bool = True) -> tuple[Tensor, Tensor]:
    """Matrices to be decomposed, and which of them are finite: in the place of the others stands the identity.

    Those that are finite are scaled by a power of two, which rounds nothing and changes no retraction, so that their
    largest entry is of order one and no square of theirs overflows.
    """
    size = max_entry(y)
    finite = torch.isfinite(size)
    if rescale:
        size = torch.where(finite, size, 1).clamp_min(torch.finfo(size.dtype).tiny)
        mantissa, _ = torch.frexp(size)
        y = y * (4 * mantissa / size)[..., None, None]  # 4: the power of two of the largest number is no denormal
    identity = torch.eye(*y.shape[-2:], dtype=y.dtype, device=y.device)
    return torch.where(finite[..., None, None], y, identity), finite


def _nan_unless(condition: Tensor, a: Tensor) -> Tensor:
    return torch.where(condition[..., None, None], a, torch.nan)
