"""The forms of one POGO step. They agree up to rounding, while leaps are not absurd; they differ in their products.

    R  = ½[(XXᴴ)G − (XGᴴ)X]        relative gradient
    M  = X − sR                    leap; s = η, or less where the policy clips
    C  = MMᴴ − I                   where the step lands, measured
    X⁺ = M + Q(C)M                 land

| form | products | best when |
|---|---|---|
| ``direct-n`` | 2·pn² + 2·p²n | n < 2p |
| ``direct-p`` | 6·p²n | in between |
| ``gram`` | 5·p²n and p×p ones | p ≪ n and G is normalised |
| ``tiny`` | entry by entry, over the batch | p, n ≤ 4 |

:func:`orthoptim.stiefel.cost_model.choose` picks one.

The bounds of the policies that clip need a leap that is tangent: RXᴴ is skew, so that MMᴴ = XXᴴ + s²RRᴴ loses no
direction.

- In ``direct-n`` and ``tiny`` R is X times a matrix that is skew to the last bit, whatever G was: the leap is tangent
  to rounding of R itself.
- In ``direct-p`` R is a difference whose rounding error is not tangent: ‖RXᴴ + XRᴴ‖ ≤ 8u‖G‖ (6u at most was measured).
  Along a huge G that is almost normal, the leap is along that error. The clip therefore bounds s²(‖R‖² + u‖G‖²) by τ²:
  the error then takes 8√u of the leap at most, moves an eigenvalue of MMᴴ beyond 1 + τ² by 16u at most, and is seen by
  C. That clips more only where less than √u of the gradient is tangent, 1/4096 in float32.
- ``gram`` never forms M: its C is put together from XXᴴ, XGᴴ and GGᴴ, with an error of u(1 + s‖G‖)². It bounds s‖G‖ by
  2τ, which the clip of R mostly does by itself (where G is tangent and p ≪ n, R is about ½G).

Without the measured XXᴴ or MMᴴ the feedback is lost that keeps rounding errors from growing (9e-3 after 1e5 steps in
float32, against 4e-7).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.precision import exact_products
from orthoptim.stiefel.batches import (
    SYMMETRIC_FROM,
    Numbers,
    add_product,
    as_real,
    at_least,
    at_most,
    max_entry,
    pointwise,
    product,
    square_norm,
    square_norms,
    subtract_identity,
    symmetric,
    trace,
)
from orthoptim.stiefel.cost_model import choose
from orthoptim.stiefel.policies import REDUCED, Correction, Length, Policy, clip, land
from orthoptim.stiefel.sums import ColumnSums, Direction, Update, largest
from orthoptim.stiefel.unrolled import unrolled


class Leap(NamedTuple):
    """What every form is given: matrices and direction (B, p, n), and per matrix η and the scale to multiply G by.

    Without the scale 1/max|G| the entries of RRᴴ overflow long before those of G do. It is folded into small factors,
    so that it costs no pass over G; an η·max|G| that overflows is clipped.
    """

    x: Tensor
    g: Tensor
    eta: Numbers
    scale: Numbers  # (B, 1, 1)
    normalized: bool  # whether ‖scale·G‖_F is of order one


Form = Callable[[Leap, Policy], Update]

_ORDINARY = 1e-15
"""Factors of G between this and its inverse can be multiplied into a product of G after the fact."""


def pogo_step(
    x: Tensor,
    g: Tensor,
    lr: Tensor | float,
    policy: Policy,
    form: str | None = None,
    *,
    scale: Numbers | None = None,
    normalized: bool = False,
    on_host: bool = False,
) -> Update:
    """One POGO step from X along the direction G.

    Args:
        x: matrices of shape (..., p, n), p ≤ n.
        g: direction, same shape.
        lr: η, a number or a tensor that broadcasts against the batch shape.
        policy: how to land.
        form: one of ``FORMS``; by default the one :func:`choose` picks.
        scale: a factor of G for each matrix, of the batch shape.
        normalized: whether the norm of G, with its factor, is of order one, as VAdam's is.
        on_host: whether X is (1, p, n) on a CPU and numbers are Python's: the learning rate, the factor, and whether
            the leap was clipped. The forms ``direct-n`` and ``direct-p`` alone.

    Example:
        >>> from orthoptim.stiefel.policies import policy
        >>> pogo_step(torch.eye(1, 2), torch.tensor([[0.0, 1.0]]), 0.1, policy("half")).x
        tensor([[ 0.9987, -0.0499]])
    """
    batch, (p, n) = x.shape[:-2], x.shape[-2:]
    if on_host:
        eta: Numbers = float(lr)
        factor: Numbers = 1.0 if scale is None else scale
        if policy.clip is not None and not normalized:
            entry = max(max_entry(g).item(), torch.finfo(x.dtype).tiny)
            eta, factor = eta * factor * entry, 1 / entry
        return FORMS[form or choose(p, n)](Leap(x, g, eta, factor, normalized), policy)
    eta = lr if isinstance(lr, Tensor) else torch.as_tensor(lr, dtype=x.real.dtype, device=x.device)
    if len(batch) != 1:
        eta = eta.expand(batch).reshape(-1)
        x, g = x.reshape(-1, p, n), g.reshape(-1, p, n)
    if isinstance(scale, float):
        scale = x.real.new_full((1,), scale)
    factor = 1.0 if scale is None else scale.reshape(-1, 1, 1)
    if policy.clip is not None and not normalized:
        factors = [] if scale is None else [scale.reshape(-1)]
        eta, inverse = _unit_direction(eta, max_entry(g), *factors)
        factor = inverse[:, None, None]
    step = FORMS[form or choose(p, n, normalized, x.device.type)](Leap(x, g, eta, factor, normalized), policy)
    if len(batch) == 1:
        return step
    clipped, rescued = (None if flag is None else flag.reshape(batch) for flag in (step.clipped, step.rescued))
    return step._replace(x=step.x.reshape(*batch, p, n), clipped=clipped, rescued=rescued)


def direct_n(leap: Leap, policy: Policy) -> Update:
    """R through the n×n matrix S = Skew(XᴴG)."""
    x, g, eta, scale, _ = leap
    s = torch.bmm(x.mH, g)
    skew, half = s - s.mH, 0.5
    if isinstance(scale, float) and _ORDINARY < scale < 1 / _ORDINARY:
        half *= scale
    else:  # beyond, X·skew may leave the range of float32 where X·(scale·skew) does not
        skew.mul_(scale)
    # square matrices: into the memory of s, which is free again; fresh memory costs as much as half a product
    r = s if s.shape == x.shape else torch.empty_like(x)
    r = torch.baddbmm(r, x, skew, beta=0, alpha=half, out=_out(r))
    return _leap_and_land(x, r, eta, policy)


def direct_p(leap: Leap, policy: Policy) -> Update:
    """R through the p×p matrices XXᴴ and XGᴴ."""
    x, g, eta, scale, normalized = leap
    half = 0.5 * scale
    r = product(_times_(symmetric(x), half), g)
    r = add_product(r, _times_(torch.bmm(x, g.mH), half), x, alpha=-1, out=_out(r))
    error = None
    if policy.clip is not None:
        unit = (53 * REDUCED) ** 2 if policy.mixed else None
        on_host = isinstance(eta, float)
        square, factors = square_norms(g, on_host), [scale] if on_host else _tensors(_per_matrix(scale))
        error = _rounding_error(square, *factors, normalized=normalized, unit=unit, dtype=x.real.dtype)
    return _leap_and_land(x, r, eta, policy, error)


def gram(leap: Leap, policy: Policy) -> Update:
    """Everything through A = XXᴴ, B = XGᴴ and N = GGᴴ: R = ½(AG − BX), so RRᴴ and X⁺ = X + DX + FG need no R."""
    x, g, eta, scale, _ = leap
    a, b, n = symmetric(x), _times_(torch.bmm(x, g.mH), scale), symmetric(g)
    square = trace(n)
    n = _times_(_times_(n, scale), scale)  # the square of the scale may overflow
    # RRᴴ = ¼[A(NA − BᴴBᴴ) − B(BA − ABᴴ)]: with A = Aᴴ, BX·(AG)ᴴ = B·XGᴴ·A = BBA
    ba, bh = torch.bmm(b, a), b.mH
    na = torch.bmm(n, a)
    e = torch.bmm(a, torch.baddbmm(na, bh, bh, alpha=-1, out=_out(na)))
    e = torch.baddbmm(e, b, ba - ba.mH, beta=0.25, alpha=-0.25, out=_out(e))
    factors = _tensors(_per_matrix(scale))
    size = trace(e) if policy.clip is None else _gram_size(trace(e), square, *factors)
    length = clip(eta, size, x.shape[-2], policy)
    squared, half, scaled = (each.view(-1, 1, 1) for each in _gram_factors(length.s, *factors))
    landing = land(subtract_identity(_plus_times(a, e, squared)), policy, length)
    # X⁺ = (I + Q)(X − s/2·(AG − BX)) = X + [Q + s/2·(I+Q)B]X − [s/2·(I+Q)A]G
    q, weight = landing.q, landing.weight
    d = _plus_times(landing.matrix(), torch.baddbmm(b, q, b, alpha=weight), half)
    f = _times_(torch.baddbmm(a, q, a, alpha=weight), scaled)
    new = add_product(x, d, x)
    new = add_product(new, f, g, alpha=-1, out=_out(new))
    if policy.clip is None:  # C does not see M, and nothing bounds s‖G‖: X⁺ may overflow where C is finite
        return Update(new, clipped=length.clipped, rescued=landing.rescued)
    return _landed(new, length, landing, policy)


def tiny(leap: Leap, policy: Policy) -> Update:
    """Entry by entry, each a vector over the batch, which is best the last dim in memory."""
    scale = _per_matrix(leap.scale)
    tables = leap.x.permute(1, 2, 0), leap.g.permute(1, 2, 0)  # (p, n, B)
    x, g = ([list(row.unbind(0)) for row in a.unbind(0)] for a in tables)
    if torch.compiler.is_compiling():
        step = unrolled(x, g, leap.eta, scale, policy)
        return _measured(torch.stack([torch.stack(row, -1) for row in step.table], 1), *step[1:])
    new = tables[0].new_empty(tables[0].shape)
    step = unrolled(x, g, leap.eta, scale, policy, new)
    return _measured(new.permute(2, 0, 1), *step[1:])


FORMS: dict[str, Form] = {"direct-n": direct_n, "direct-p": direct_p, "gram": gram, "tiny": tiny}


def pogo_columns(x: Tensor, direction: Direction, lr: Tensor, policy: Policy) -> ColumnSums[Update]:
    """One POGO step as sums over columns, see :mod:`orthoptim.stiefel.sums`; for the arguments see :func:`pogo_step`.

    C depends on the length of the leap, and that on R. C = (XXᴴ − I) − sW + s²RRᴴ saves a third sum, where RRᴴ and
    W = RXᴴ + XRᴴ, which is rounding, are measured. Where G is normalised s‖G‖ ≤ 2τ keeps sW under the roundoff.
    """
    clips, g, normalized = policy.clip is not None, direction.matrices, direction.normalized
    a, b, *sizes = yield [symmetric(x), x @ g.mH, *([square_norm(g) if normalized else largest(g)] * clips)]
    eta = lr.expand(x.shape[0])
    factor = torch.ones_like(eta) if direction.scale is None else direction.scale
    if clips and not normalized:  # the sum of the pieces' largest entries serves as well as the largest
        entry = sizes[0].clamp_min(torch.finfo(x.dtype).tiny)
        eta, factor = eta * factor * entry, 1 / entry
    half = (0.5 * factor)[:, None, None]
    r = torch.baddbmm((a * half) @ g, b * half, x, alpha=-1)
    w = r @ x.mH if clips and not normalized else None
    e, *more = yield [symmetric(r), *([] if w is None else [w + w.mH, square_norm(g)])]
    size = trace(e)
    if clips:
        square = more[1] if more else sizes[0]
        square = direction_size(square, factor, square.dtype)
        size = size + rounding(square, x.dtype, normalized) if more else torch.maximum(size, 0.25 * square)
    length = clip(eta, size, x.shape[-2], policy)
    s = length.s[:, None, None]
    c = subtract_identity(a).add_(e * s**2)
    if more:
        c.sub_(more[0] * s)
    size = trace(c) + c.shape[-1]  # ‖M‖_F²
    landing = land(c, policy, length)
    q = landing.matrix()
    m = r.mul_(-s).add_(x)
    probe = (square_norm(q) * size.clamp_min(0)).sqrt()
    return Update(torch.baddbmm(m, q, m), clipped=length.clipped, rescued=landing.rescued, finiteness_probe=probe)


def _leap_and_land(x: Tensor, r: Tensor, eta: Numbers, policy: Policy, error: Numbers | None = None) -> Update:
    """From X and R, and what to add to ‖R‖_F² for its rounding error."""
    size = square_norms(r, on_host=isinstance(eta, float))
    length = clip(eta, size if error is None else size + error, x.shape[-2], policy, x.real.dtype)
    s, on_host = length.s, isinstance(length.s, float)
    m = torch.add(x, r, alpha=-s, out=r) if on_host else torch.addcmul(x, r, s.view(-1, 1, 1), value=-1, out=_out(r))
    if not policy.mixed:
        landing = land(_defect(m, on_host), policy, length)
        return _landed(add_product(m, landing.q, m, alpha=landing.weight), length, landing, policy)
    with exact_products():
        landing = land(_defect(m, on_host), policy, length)
    with exact_products(not policy.half):
        return _landed(add_product(m, landing.q, m, alpha=landing.weight), length, landing, policy)


def _defect(m: Tensor, on_host: bool) -> Tensor:
    """C = MMᴴ − I; that of a single small matrix in one operation."""
    if on_host and m.shape[-2] < SYMMETRIC_FROM:
        return torch.baddbmm(_identity(m.shape[-2], m.dtype), m, m.mH, beta=-1)
    return subtract_identity(symmetric(m))


@lru_cache(maxsize=8)
def _identity(p: int, dtype: torch.dtype) -> Tensor:
    return torch.eye(p, dtype=dtype).unsqueeze(0)


def _landed(x: Tensor, length: Length, landing: Correction, policy: Policy) -> Update:
    # G that is not finite makes all of R so, and M; where M is finite, a landing of known factors is
    probe = landing.top if policy.half or policy.clip is not None else None
    return _measured(x, length.clipped, landing.rescued, probe, landing.rescued is None)


def _measured(x: Tensor, clipped: Any, rescued: Tensor | None, probe: Tensor | None, finite: bool) -> Update:
    """An update whose probe, where there is one, is finite only if G is."""
    return Update(x, {}, clipped, rescued, probe, covers_direction=probe is not None, finite=finite)


@pointwise
def _unit_direction(eta: Tensor, entry: Tensor, *scale: Tensor) -> tuple[Tensor, Tensor]:
    """The learning rate of G over its largest entry, and one over that."""
    entry = entry.clamp_min(torch.finfo(eta.dtype).tiny)
    return eta * scale[0] * entry if scale else eta * entry, 1 / entry


@pointwise
def _gram_size(size: Tensor, square: Tensor, *scale: Tensor) -> Tensor:
    """‖R‖_F², or as much as keeps s‖G‖ ≤ 2τ, from ‖R‖_F² and ‖G‖_F²."""
    return torch.maximum(size, 0.25 * direction_size(square, scale[0] if scale else 1.0, square.dtype))


@pointwise
def _gram_factors(s: Tensor, *scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The square of s, half of it, and half of it with the factor of G."""
    half = 0.5 * s
    return s * s, half, half * scale[0] if scale else 1 * half


@pointwise
def _rounding_error(
    square: Numbers, *scale: Numbers, normalized: bool, unit: float | None, dtype: torch.dtype
) -> Numbers:
    """What to add to ‖R‖_F² in the form ``direct-p``, from ‖G‖_F²."""
    return rounding(direction_size(square, scale[0] if scale else 1.0, dtype), dtype, normalized, unit)


def _out(a: Tensor) -> Tensor | None:
    """The memory of A, to write a result to; a compiler plans memory by itself."""
    return None if torch.compiler.is_compiling() else a


def _tensors(factor: Tensor | float) -> list[Tensor]:
    return [factor] if isinstance(factor, Tensor) else []


def _plus_times(a: Tensor, b: Tensor, factor: Tensor) -> Tensor:
    """A + factor·B with a real factor (B, 1, 1); the parts of complex entries by themselves."""
    if not a.is_complex():
        return torch.addcmul(a, b, factor)
    return torch.view_as_complex(torch.addcmul(as_real(a), as_real(b), factor.unsqueeze(-1)))


def _times_(a: Tensor, factor: Tensor | float) -> Tensor:
    """The product with a real factor, in the memory of A; the parts of complex entries by themselves: faster."""
    if not a.is_complex():
        return a.mul_(factor)
    torch.view_as_real(a).mul_(factor.unsqueeze(-1) if isinstance(factor, Tensor) else factor)
    return a


def rounding(square: Numbers, dtype: torch.dtype, normalized: bool, unit: float | None = None) -> Numbers:
    """u‖G‖_F², see the module. A G of zeros that was divided by its largest entry has an infinite factor.

    Args:
        square: ‖G‖_F².
        dtype: whose roundoff u is.
        normalized: whether ‖G‖_F is of order one.
        unit: what to take for u, where products are reduced.
    """
    if unit is not None:
        return at_most(square * unit, torch.finfo(dtype).max ** 0.5)
    error = square * (torch.finfo(dtype).eps / 2)
    return error if normalized else at_most(error, 1)


def direction_size(square: Numbers, scale: Numbers, dtype: torch.dtype) -> Numbers:
    """‖G‖_F² with its factor; squares that were flushed to zero are taken to be as large as they could be."""
    info = torch.finfo(dtype)
    return at_least(square, info.tiny / info.eps) * scale * scale


def _per_matrix(scale: Tensor | float) -> Tensor | float:
    return scale[:, 0, 0] if isinstance(scale, Tensor) else scale
