"""StiefelMuon: momentum, its tangent part, the matrix sign of that, a leap and a landing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import SGD, Base, Direction, State
from orthoptim.literals import MSIGN_DTYPES, MatmulPrecision, MsignDtype
from orthoptim.optim.common_options import CommonOptions
from orthoptim.optim.orthoptimizer import Orthoptimizer, Params
from orthoptim.optim.pogo import check_matmul_precision
from orthoptim.precision import exact_products
from orthoptim.stiefel import ColumnSums, Policy, Update
from orthoptim.stiefel.batches import symmetric, trace
from orthoptim.stiefel.msign import REDUCED, gain, may_reduce, msign_columns, msign_skew, quintics
from orthoptim.validation import check_choice, check_nonnegative, check_number, check_positive_integer

_LANDINGS = ("safe", "strict", "half")

_WIDEST = 4 / 3
"""‖R‖₂² of the tangent part R of a D with ‖D‖₂ ≤ 1, at most.

For a unit vector v and D = AX + B, BXᴴ = 0, let α and β be the parts of vᴴA and Av that are orthogonal to v. Then
‖vᴴR‖² = ¼‖α − β‖² + ‖vᴴB‖² ≤ ¼(‖α‖ + 1)² + 1 − ‖α‖², which is largest at ‖α‖ = ⅓.
"""


class StiefelMuon(Orthoptimizer):
    r"""Spectral steps on the Stiefel manifold: every singular direction turns by the same angle.

    .. math::
        \begin{aligned}
        &B = μB + ∇f(X),\quad G = ∇f(X) + μB              && \text{momentum, as in torch.optim.Muon} \\
        &T = G - \operatorname{Sym}(GX^H)X                && \text{its tangent part} \\
        &D = \operatorname{msign}(T)                      && \text{by ns\_steps products} \\
        &R = D - \operatorname{Sym}(DX^H)X                && \text{D itself, if X is square} \\
        &M = X - ηR,\quad X ← M - \tfrac12(MM^H - I)M     && \text{leap and land}
        \end{aligned}

    η is an angle in radians, whatever the shape and the size of the gradient. For square X, R is the tangent direction
    of steepest descent in the spectral norm, ‖R‖₂ = 1; for p < n it is close to it (docs/methods/stiefelmuon.md
    says how close), and ‖R‖₂² ≤ 4/3. From an orthonormal start the distance ‖XXᴴ−I‖₂ is at most ¾(η‖R‖₂)⁴, and with
    ``landing="safe"`` it never exceeds ½ whatever the learning rate: steps beyond one radian (0.86 for p < n) are
    clipped.

    Only matrix products, also over ranks. T that is but rounding error of G (‖T‖_F < eps·max|G|) moves X in proportion.

    Args:
        {params}
        lr: η, an angle.
        base: turns the gradient into G, in the place of this momentum.
        momentum: μ.
        nesterov: whether to look ahead.
        ns_coefficients: ``"polar-express"``, or a, b and c of a quintic that is applied ``ns_steps`` times, such as
            ``(3.4445, -4.7750, 2.0315)``, that of torch.optim.Muon. The result is divided by the largest singular value
            that the quintics can give.
        ns_steps: the number of steps of msign; five have coefficients of their own.
        eps: see above.
        ns_dtype: ``"bfloat16"``: products of msign of square float32 matrices from 256×256 on run in bfloat16, as those
            of torch.optim.Muon do; ``"full"``: none do.
        matmul_precision: as for :class:`POGO`. ``"mixed"``: the products of square matrices run at the precision of
            torch's switches, but for msign and the landing; steps are clipped at 0.95 radian. Others are exact.
        landing: ``"safe"``, ``"strict"`` (within 1.5e-6 and rounding; clips at ½) or ``"half"`` (never clips).
        {common}

    Example:
        >>> x = torch.nn.Parameter(torch.eye(2, 3))
        >>> opt = StiefelMuon([x], lr=0.02)
        >>> x.grad = torch.ones(2, 3)
        >>> opt.step()
    """

    algorithm = "stiefelmuon"
    base_options = frozenset({"momentum", "nesterov"})

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        base: Base | None = None,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: str | Sequence[float] = "polar-express",
        ns_steps: int = 6,
        eps: float = 1e-7,
        ns_dtype: MsignDtype = "bfloat16",
        matmul_precision: MatmulPrecision = "ieee",
        landing: str = "safe",
        **common: Unpack[CommonOptions],
    ) -> None:
        if base is None:  # msign does not see a factor of G, and up to a factor torch.optim.Muon's averages are SGD's
            base = SGD(momentum=momentum, nesterov=nesterov if momentum else False)
        options = {"ns_coefficients": ns_coefficients, "ns_steps": ns_steps, "eps": eps, "ns_dtype": ns_dtype}
        super().__init__(params, lr, base, landing=landing, matmul_precision=matmul_precision, **options, **common)

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> ColumnSums[Update]:
        """See :meth:`Orthoptimizer.update`."""
        policy, g = stiefel.policy(group["landing"], mixed=_is_mixed(group)), direction.matrices
        reduced = group.get("form") == "skew" and group["ns_dtype"] == "bfloat16" and may_reduce(x)
        table = quintics(group["ns_coefficients"], group["ns_steps"])
        eta = lr.expand(x.shape[0])
        if group.get("form") == "skew":
            b, entry = yield [x @ g.mH, stiefel.largest(g)]
            # in units of the largest entry no square overflows
            k = (b - b.mH).mul_(-0.5 / _unit(entry))  # in this order its rows are contiguous
            size = stiefel.square_norm(k).sqrt()
            with exact_products(policy.mixed):
                d = msign_skew(k, table, reduced).div_(gain(table) * (REDUCED if reduced else 1))
            s, clipped = _clip(eta, policy, 1.0)
            # with D skew MMᴴ = (I − sD)XXᴴ(I − sD)ᴴ, which lies between XXᴴ's least eigenvalue and 1 + s², on and off
            # the manifold
            length, widest = s * shrinkage(size, group["eps"]), 1.0
            m = torch.baddbmm(x, d * -length[:, None, None], x)
        else:
            a, b, entry = yield [symmetric(x), x @ g.mH, stiefel.largest(g)]
            # of a matrix that was written far from the manifold, T is as large as this, and R as top·(2 + top)
            far = _is_far(a)
            top = torch.where(far, trace(a).clamp_min(1), 1)
            tangent = torch.baddbmm(g, stiefel.sym(b), x, alpha=-1) / (_unit(entry) * top[:, None, None])
            (gram,) = yield [symmetric(tangent)]
            size = trace(gram).sqrt()
            y, f, cross = yield msign_columns(tangent, x, gram, table)
            # R = XW with W = 2 Skew(XᴴD) − Xᴴ Skew(DXᴴ)X, D = FY: then MMᴴ = XXᴴ + s²RRᴴ on and off the manifold
            b = cross @ f
            s, clipped = _clip(eta, policy, _WIDEST)
            s = torch.where(far, torch.minimum(s.abs(), 1 / (top * (2 + top))), s)
            length, widest = s * shrinkage(size, group["eps"]) / gain(table), _WIDEST
            scale = length[:, None, None]
            a = a * scale
            m = torch.baddbmm(x, a @ f, y, alpha=-1)
            m = torch.baddbmm(m, torch.baddbmm(b * scale, a, stiefel.skew(b.mH)), x)
        with exact_products(policy.mixed):
            measured = symmetric(m)
        (gram,) = yield [measured]
        total = trace(gram)
        # ‖C‖_F² of steps from within the bound
        leap = (x.shape[-2] * ((widest * length * length).square() + 0.25)).sqrt()
        leaps = None if policy.clip is None else stiefel.Length(torch.ones_like(leap), clipped, leap)
        with exact_products(policy.mixed):  # QM, too: a reduced one is off by uη², which may exceed ¾η⁴
            landing = stiefel.land(stiefel.subtract_identity(gram), policy, leaps)
            q = landing.matrix()
            new = torch.baddbmm(m, q, m)
        probe = (stiefel.square_norm(q) * total.clamp_min(0)).sqrt()
        return Update(new, clipped=clipped, rescued=landing.rescued, finiteness_probe=probe)

    @classmethod
    def update_whole(
        cls, x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> Update:
        """See :meth:`Orthoptimizer.update_whole`: the products of p < n are exact."""
        with exact_products(_is_mixed(group) and group.get("form") != "skew"):
            return super().update_whole(x, direction, lr, state, t, group)

    @classmethod
    def form(cls, p: int, n: int, group: Mapping[str, Any], device: str = "cpu") -> str:
        """See :meth:`Orthoptimizer.form`: the tangent space of a square X is that of skew matrices times X."""
        return "skew" if p == n else "gram"

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        check_choice("landing", group["landing"], _LANDINGS)
        check_choice("ns_dtype", group["ns_dtype"], MSIGN_DTYPES)
        check_matmul_precision(group)
        check_positive_integer("ns_steps", group["ns_steps"])
        check_nonnegative("eps", group["eps"])
        coefficients = group["ns_coefficients"]
        if isinstance(coefficients, str):
            check_choice("ns_coefficients", coefficients, ("polar-express",))
            return
        if not isinstance(coefficients, Sequence) or len(coefficients) != 3:
            raise ValueError(f"Invalid ns_coefficients: {coefficients!r}; choose 'polar-express' or three numbers")
        for value in coefficients:
            check_number("ns_coefficients", value)
        if not 0 < gain(quintics(coefficients, group["ns_steps"])) < math.inf:
            raise ValueError(f"Invalid ns_coefficients: {coefficients!r}; {group['ns_steps']} steps of them diverge")


def _is_mixed(group: Mapping[str, Any]) -> bool:
    return bool(group["matmul_precision"] == "mixed")


def shrinkage(size: Tensor, eps: float) -> Tensor:
    """How much of the step a T of that norm deserves, in units of the largest entry of G."""
    return (size / eps).clamp_max(1) if eps > 0 else torch.ones_like(size)


def _unit(entry: Tensor) -> Tensor:
    return entry.clamp_min(torch.finfo(entry.dtype).tiny)[:, None, None]


def _clip(eta: Tensor, policy: Policy, widest: float) -> tuple[Tensor, Tensor | None]:
    """The angle, such that s²‖R‖₂² ≤ τ², and where that is not η."""
    if policy.clip is None:
        return eta, None
    most = policy.clip / widest**0.5
    s = eta.clamp(-most, most)
    return s, s != eta


def _is_far(a: Tensor) -> Tensor:
    """Whether no sequence of steps leads to this XXᴴ, whose eigenvalues are in [½, 1] then."""
    defect = stiefel.subtract_identity(a.clone())
    top = defect.diagonal(dim1=-2, dim2=-1).real.amax(-1)
    return ~((top <= 0.1) & (stiefel.square_norm(defect) <= 0.25 * a.shape[-1] + 0.36))
