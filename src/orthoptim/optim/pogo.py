"""POGO: leap along the relative gradient, land back on the manifold."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, Unpack

import torch
from torch import Tensor

from orthoptim import stiefel
from orthoptim.base import Base, Direction, State, VAdam
from orthoptim.literals import MATMUL_PRECISIONS, LandingPolicy, MatmulPrecision
from orthoptim.optim.common_options import CommonOptions
from orthoptim.optim.orthoptimizer import Orthoptimizer, Params
from orthoptim.stiefel import ColumnSums, Update, is_single
from orthoptim.validation import check_choice, check_positive_integer


class POGO(Orthoptimizer):
    r"""Proximal One-step Geometric Optimization.

    .. math::
        \begin{aligned}
        &G = \operatorname{base}(∇f(X))              && \text{direction} \\
        &R = X \operatorname{Skew}(X^H G)            && \text{relative gradient} \\
        &M = X - ηR                                  && \text{leap} \\
        &X ← M - λ(MM^H - I)M                        && \text{land; λ = ½ by default}
        \end{aligned}

    POGO uses matrix products only. With the default landing ``"safe"`` the distance from the manifold never exceeds ½,
    whatever the gradients and the learning rate; in ordinary training it is at rounding level.

    Args:
        {params}
        lr: η. With :class:`VAdam` it is about the length of a step in the Frobenius norm; the paper uses 0.5.
        base: turns the gradient into the direction.
        landing: ``"safe"``, ``"strict"`` (within 1.5e-6 and rounding, for any gradients), ``"half"`` (the paper's
            λ = ½), ``"root"`` (the paper's quartic), ``"argmin"`` (the best λ) or ``"newton-schulz"``
            (``landing_steps`` times λ = ½). By default ``"safe"``, or what the base asks for: ``"strict"`` with
            :class:`BB`, :class:`CG` and :class:`LBFGS`, which take no landing that does not clip.
        landing_steps: the number of landings of ``"newton-schulz"``.
        matmul_precision: ``"ieee"``: every product is exact to float32, whatever torch's switches say. ``"mixed"``: the
            leap runs at the precision that the switches allow (TF32, bfloat16), and where it lands is measured exactly;
            all bounds hold. Leaps are clipped at 0.95 instead of 1, ``"strict"`` ones at 0.47 instead of ½. Products of
            tiny matrices on a CPU, and of DTensors that are stepped by several ranks, stay exact. Not with ``compile``,
            :class:`BB`, :class:`CG` or :class:`LBFGS`.
        {common}

    Example:
        >>> import torch
        >>> from orthoptim import POGO, distance, orthogonalize_
        >>> layer = torch.nn.Linear(8, 8, bias=False)
        >>> _ = orthogonalize_(layer.weight)
        >>> opt = POGO(layer.parameters(), lr=0.1)
        >>> layer(torch.ones(8)).square().mean().backward()
        >>> opt.step()
        >>> bool(distance(layer.weight) < 1e-4)
        True
    """

    algorithm = "pogo"
    unrolls = True
    has_kernels = True

    def __init__(
        self,
        params: Params,
        lr: float | Tensor | None = None,
        base: Base = VAdam(),  # noqa: B008  (never changed)
        *,
        landing: LandingPolicy | None = None,
        landing_steps: int = 2,
        matmul_precision: MatmulPrecision = "ieee",
        **common: Unpack[CommonOptions],
    ) -> None:
        options = {"landing": landing, "landing_steps": landing_steps, "matmul_precision": matmul_precision}
        super().__init__(params, lr, base, **options, **common)

    @staticmethod
    def update(
        x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> ColumnSums[Update]:
        """See :meth:`Orthoptimizer.update`."""
        policy = stiefel.policy(group["landing"], group["landing_steps"])
        update: Update = yield stiefel.pogo_columns(x, direction, lr, policy)
        return update

    @classmethod
    def update_whole(
        cls, x: Tensor, direction: Direction, lr: Tensor, state: State, t: Tensor, group: Mapping[str, Any]
    ) -> Update:
        """See :meth:`Orthoptimizer.update_whole`: the form of least cost."""
        policy = stiefel.policy(group["landing"], group["landing_steps"], group["matmul_precision"] == "mixed")
        form = group.get("form") or cls.form(x.shape[-2], x.shape[-1], group, x.device.type)
        numbers = direction.numbers
        on_host = form.startswith("direct") and (isinstance(numbers, float) or (numbers is None and is_single(x)))
        return stiefel.pogo_step(
            x,
            direction.matrices,
            lr,
            policy,
            form,
            scale=numbers,
            normalized=direction.normalized,
            on_host=on_host,
        )

    @staticmethod
    def update_entries(x: stiefel.Table, g: stiefel.Table, lr: Tensor, group: Mapping[str, Any]) -> stiefel.Unrolled:
        """See :meth:`Orthoptimizer.update_entries`."""
        policy = stiefel.policy(group["landing"], group["landing_steps"])
        if policy.clip is None or Base.named(group["base"]).normalized:
            return stiefel.unrolled(x, g, lr, 1.0, policy)
        size = reduce(torch.maximum, [entry.abs() for row in g for entry in row])  # as in pogo_step
        size = size.clamp_min(torch.finfo(size.dtype).tiny)
        return stiefel.unrolled(x, g, lr * size, 1 / size, policy)

    @classmethod
    def form(cls, p: int, n: int, group: Mapping[str, Any], device: str = "cpu") -> str:
        """See :meth:`Orthoptimizer.form`."""
        # gram does not measure where it lands
        measured = group["matmul_precision"] == "mixed"
        return stiefel.choose(p, n, Base.named(group["base"]).normalized and not measured, device)

    @staticmethod
    def check_options(group: Mapping[str, Any]) -> None:
        """See :meth:`Orthoptimizer.check_options`."""
        check_choice("landing", group["landing"], stiefel.POLICIES)
        check_positive_integer("landing_steps", group["landing_steps"])
        check_matmul_precision(group)
        base = Base.named(group["base"])
        if base.default_landing is not None and stiefel.policy(group["landing"]).clip is None:
            raise ValueError(
                f"Invalid landing: {group['landing']!r} does not clip leaps, and those of {base.__name__} can be of "
                "any length; choose 'strict' or 'safe'"
            )


def check_matmul_precision(group: Mapping[str, Any]) -> None:
    """Raise ValueError where products cannot be of the precision that is asked for."""
    check_choice("matmul_precision", group["matmul_precision"], MATMUL_PRECISIONS)
    if group["matmul_precision"] == "mixed":
        if group["compile"]:
            raise ValueError(
                "Invalid matmul_precision: 'mixed' needs exact products among reduced ones, and a compiled graph "
                "has one precision; choose compile=False or 'ieee'"
            )
        base = Base.named(group["base"])
        if base.default_landing is not None:
            raise ValueError(
                f"Invalid matmul_precision: {base.__name__} divides differences of gradients, which 'mixed' would "
                "round away; choose 'ieee'"
            )
