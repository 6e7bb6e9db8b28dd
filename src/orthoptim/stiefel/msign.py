"""The matrix sign of a batch: msign(T) = UVᴴ for T = UΣVᴴ, by products alone.

Each step applies an odd quintic to the singular values, T ← (aI + bA + cA²)T with A = TTᴴ. The coefficients are those
of Polar Express: each quintic is the best approximation of 1 on the interval to which the ones before it have brought
the singular values (greedy composition is optimal; the test computes them by Remez' exchange).

*Scale.* The quintics expect singular values in (0, 1]. The usual bound ‖T‖_F is up to √p times the largest one and
wastes steps. Here ‖A⁴‖_F^(1/8) bounds it, at most p^(1/16) times too large, for one product p×p more.

*Gram form*, for p < n: T is touched by products p×p alone. A becomes hAh with h = aI + bA + cA², and the factors h are
multiplied up, F ← hF, so that msign(T) = FT. A knows singular values down to √u of the largest, so that F is applied
after ``_RESTART`` steps, which have lifted the small ones thirtyfold, and A is measured again.

*Skew form*, for the skew-Hermitian T of square points: all three products of a step are Hermitian or skew, so that half
of each is computed. Large float32 matrices may be computed in bfloat16, see :func:`msign_skew`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from orthoptim.stiefel.batches import hermitian, square_norm, symmetric
from orthoptim.stiefel.sums import ColumnSums, on_one_device

Quintic = tuple[float, float, float]

POLAR_EXPRESS: tuple[Quintic, ...] = (
    (8.297526457977009, -23.625254459877514, 17.32191974148338),
    (4.123000941434502, -2.9519395312392693, 0.5442433838606014),
    (4.009197421366912, -2.9233987927710183, 0.5489216529401622),
    (3.5404611895653244, -2.6521358622479827, 0.5286137150429433),
    (2.5322150224845554, -1.86992024692413, 0.440756214108275),
    (1.9258318680554398, -1.3053903276547887, 0.3805807132994773),
    (1.875042527665475, -1.2500472521504014, 0.3750047252470276),
    (1.875, -1.25, 0.375),
)
"""For singular values from 7e-4 on: six steps bring them to 1 ± 0.0064, seven to 1 ± 2e-7; the last one is repeated."""

FIVE_STEPS: tuple[Quintic, ...] = (
    (8.236023186473199, -23.450138363923944, 17.193525485891296),
    (4.029769604545162, -2.9284405399505564, 0.548004698710247),
    (3.6232740755775215, -2.7122970363354404, 0.5354513048655105),
    (2.6421988757828347, -1.9614687725843165, 0.4508761246517153),
    (1.9511141708279576, -1.3321987606250456, 0.3833101131194247),
)
"""The same for five steps, from 2.5e-3 on, to 1 ± 0.0114: those before, cut off after five, leave 1 ± 0.22."""

MUON: Quintic = (3.4445, -4.7750, 2.0315)
"""The quintic of torch.optim.Muon, the same in each step: it brings singular values to about [0.7, 1.2] in five."""

REDUCED = 1.03
"""How large bfloat16 may make a singular value that should be one at most."""

_RESTART = 2
_DIVERGED = 1e3
_MARGIN = 1.01  # of the bound of the largest singular value, for rounding
_REDUCED_FROM = 256


def quintics(coefficients: str | Sequence[float], steps: int) -> list[Quintic]:
    """The quintics of all steps.

    Args:
        coefficients: ``"polar-express"``, or a, b and c of every step.
        steps: their number.

    Example:
        >>> len(quintics("polar-express", 10))
        10
    """
    if isinstance(coefficients, str):
        if steps == len(FIVE_STEPS):
            return [*FIVE_STEPS]
        return [POLAR_EXPRESS[min(k, len(POLAR_EXPRESS) - 1)] for k in range(steps)]
    a, b, c = coefficients
    return [(a, b, c)] * steps


def gain(table: Sequence[Quintic]) -> float:
    """A bound of the singular values that the quintics give, for any T; infinite where they diverge.

    Example:
        >>> round(gain(quintics("polar-express", 6)), 4)
        1.0063
    """
    bound = 1.0
    for a, b, c in table:
        points = [bound]
        discriminant = 9 * b * b - 20 * a * c
        if discriminant >= 0:
            # the roots of a + 3bx² + 5cx⁴, in the form that does not cancel and has the root of a cubic, c = 0
            q = -0.5 * (3 * b + math.copysign(math.sqrt(discriminant), b))
            squares = [top / bottom for top, bottom in ((q, 5 * c), (a, q)) if bottom]
            points += [math.sqrt(square) for square in squares if 0 < square < bound * bound]
        bound = max([abs(a * x + b * x**3 + c * x**5) for x in points])
        if bound > _DIVERGED:
            return math.inf
    return bound


def msign(t: Tensor, table: Sequence[Quintic] = POLAR_EXPRESS[:6]) -> Tensor:
    """UVᴴ of T = UΣVᴴ (..., p, n) with p ≤ n, approximately; zero where T is.

    Example:
        >>> t = torch.tensor([[0.0, 3.0, 0.0], [0.1, 0.0, 0.0]])
        >>> bool((msign(t) - torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])).abs().max() < 1e-2)
        True
    """
    batch = t.reshape(-1, *t.shape[-2:])
    size = batch.abs().amax((-2, -1)).clamp_min(torch.finfo(batch.real.dtype).tiny)
    batch = batch / size[:, None, None]
    y, f, _ = on_one_device(msign_columns(batch, batch, batch @ batch.mH, table))
    return (f @ y).reshape(t.shape)


def msign_columns(
    t: Tensor, x: Tensor, gram: Tensor, table: Sequence[Quintic]
) -> ColumnSums[tuple[Tensor, Tensor, Tensor]]:
    """Msign(T) = FY in the Gram form, as sums over columns.

    Args:
        t: T (B, p, n), or some of its columns; entries of order one at most.
        x: matrices X with the same columns.
        gram: TTᴴ, of all columns.
        table: the quintics.

    Returns:
        Y, F, and XYᴴ of all columns.
    """
    table = _cushioned(table, gram.dtype)
    a, square, bound = _scaled(gram)
    y = (_factor(a, square, table[:_RESTART]) / bound[:, None, None]) @ t
    a, cross = yield [symmetric(y), x @ y.mH]
    f = _factor(a, hermitian(a, a), table[_RESTART:])
    return y, f, cross


def may_reduce(k: Tensor) -> bool:
    """Whether products in bfloat16 are worth two conversions: those of large float32 matrices."""
    return k.dtype == torch.float32 and k.shape[-1] >= _REDUCED_FROM


def msign_skew(k: Tensor, table: Sequence[Quintic], reduced: bool) -> Tensor:
    """Msign of skew-Hermitian matrices K (B, p, p), entries of order one at most; skew-Hermitian itself.

    Args:
        k: the matrices.
        table: the quintics.
        reduced: whether products run in bfloat16, as those of torch.optim.Muon do, see :func:`may_reduce`. The result
            is then within a tenth of msign(K) if K is well conditioned, its norm within ``REDUCED``, and still skew.
    """
    dtype = k.dtype
    size = square_norm(k).sqrt().clamp_min(torch.finfo(k.real.dtype).tiny)
    y = k / size[:, None, None]
    if reduced:
        y = y.bfloat16()
    for step, (constant, linear, quadratic) in enumerate(_cushioned(table, y.dtype)):
        a = hermitian(y, y)
        if step == 0:
            a, square, bound = _rescale(a, hermitian(a, a))
            y = y / bound.to(y.dtype)[:, None, None]
            h = _polynomial(a, square, (-constant, -linear, -quadratic))
        else:
            h = _plus(hermitian(a, _plus(a * -quadratic, -linear)), -constant)
        y = hermitian(h, y, sign=-1)  # Yᴴ = −Y
    return y.to(dtype)


def _factor(a: Tensor, square: Tensor, table: Sequence[Quintic]) -> Tensor:
    """F with msign(T) ≈ FT, from A = TTᴴ and A² alone."""
    f = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)
    for step, coefficients in enumerate(table):
        h = _polynomial(a, square, coefficients)
        f = h if step == 0 else hermitian(h, f.mH)
        if step < len(table) - 1:
            a = hermitian(h, hermitian(h, a))  # hAh, in this order: hhA loses digits
            square = hermitian(a, a)
    return f


def _cushioned(table: Sequence[Quintic], dtype: torch.dtype) -> list[Quintic]:
    """The same quintics of x/f: they are steep where x is largest, and rounding may make it larger than it should be.

    Without that, six steps in float32 give singular values up to 4e-4 beyond :func:`gain`. Float64 does not need it,
    and has it so that both precisions compute the same function.
    """
    factor = 1.02 if dtype == torch.bfloat16 else 1 + 2**-11
    return [(a / factor, b / factor**3, c / factor**5) for a, b, c in table]


def _scaled(gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A = TTᴴ/β² with eigenvalues in [0, 1], A², and β."""
    trace = gram.diagonal(dim1=-2, dim2=-1).real.sum(-1).clamp_min(torch.finfo(gram.real.dtype).tiny)
    a = gram / trace[:, None, None]
    a, square, bound = _rescale(a, hermitian(a, a))
    return a, square, bound * trace.sqrt()


def _rescale(a: Tensor, square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A/β² with eigenvalues in [0, 1] for A with a trace of one, (A/β²)², and β; A of zeros has β > 0."""
    p = a.shape[-1]
    if a.dtype == torch.bfloat16:  # which does not resolve what a tighter bound gains
        largest = square_norm(square.float()).sqrt()
    else:
        largest = square_norm(hermitian(square, square)).sqrt().sqrt()
    bound = (_MARGIN * largest.sqrt()).clamp_min(1 / (2 * p))
    factor = (1 / bound).to(a.real.dtype)[:, None, None]
    return a * factor, square * (factor * factor), bound.sqrt()


def _polynomial(a: Tensor, square: Tensor, coefficients: Quintic) -> Tensor:
    """``aI + bA + cA²``, in the memory of A²."""
    constant, linear, quadratic = coefficients
    return _plus(square.mul_(quadratic).add_(a, alpha=linear), constant)


def _plus(a: Tensor, constant: float) -> Tensor:
    """A + ``constant``·I, written into A itself."""
    a.diagonal(dim1=-2, dim2=-1).add_(constant)
    return a
