"""Functions of orthogonal matrices outside of a step: how far they are from the manifold, and how to get there.

All take plain tensors and DTensors. For a DTensor they are collective: every rank of its mesh must call them.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from orthoptim import stiefel
from orthoptim.distributed import matrices as sharded
from orthoptim.distributed.matrices import Matrices
from orthoptim.groups import Patterns, check_views, match
from orthoptim.literals import INITS, Init
from orthoptim.parts import Scale, Side
from orthoptim.precision import full_precision
from orthoptim.tensors import check_dtype, check_values, compute_dtype, is_dtensor, real_dtype
from orthoptim.user_warnings import warn_user
from orthoptim.validation import check_choice
from orthoptim.views import View, ViewLike

TensorT = TypeVar("TensorT", bound=Tensor)
TensorOrModule = TypeVar("TensorOrModule", bound=Tensor | nn.Module)


@torch.no_grad()
def distance(tensor: Tensor, *, view: ViewLike = "matrix", side: Side = "auto", scale: Scale = 1.0) -> Tensor:
    """Distance ‖XXᴴ/σ² − I‖_F from orthonormality, one value per matrix; σ is the ``scale``, mostly 1.

    Collective for DTensors: every rank must call it and receives the distances of all matrices.

    Example:
        >>> distance(torch.eye(3))
        tensor(0.)
        >>> distance(2 * torch.eye(3), scale=2)
        tensor(0.)
    """
    try:
        check_dtype(tensor.dtype)
    except ValueError as error:
        raise ValueError(f"the tensor {error}") from None
    seen = View.of(view).scaled(scale)
    with full_precision(tensor.device):
        if is_dtensor(tensor):
            ((distances,),) = sharded.apply([Matrices(tensor, seen, side)], lambda x: [stiefel.distance(x)])
            return sharded.on_all_ranks(distances, tensor, seen)
        return seen.join_values([stiefel.distance(x) for x in _matrices(tensor, seen, side)])


@torch.no_grad()
def is_orthogonal(
    tensor: Tensor, *, view: ViewLike = "matrix", side: Side = "auto", scale: Scale = 1.0, tol: float | None = None
) -> bool:
    """Whether every matrix is orthonormal up to ``tol`` (default: what rounding explains, 10·u·p).

    Example:
        >>> is_orthogonal(torch.eye(3)), is_orthogonal(torch.ones(3, 3))
        (True, False)
    """
    try:
        check_values(tensor)
    except ValueError as error:
        raise ValueError(f"the tensor {error}") from None
    distances = distance(tensor, view=view, side=side, scale=scale)
    parts = View.of(view).parts(tensor.shape, side)
    limits = [rounding(tensor.dtype, part.p) if tol is None else tol for part in parts]
    return all(bool((part.values(distances) <= limit).all()) for part, limit in zip(parts, limits, strict=True))


def apply_to_matrices(
    given: Sequence[tuple[Tensor, View, str]],
    function: Callable[[Tensor], list[Tensor]],
    *,
    numbers: int = 1,
    writes: bool = False,
) -> list[list[Tensor]]:
    """What a function makes of the matrices of tensors, plain ones and DTensors: for each tensor, its numbers (B,).

    Each matrix of a DTensor is computed on one rank, which has its numbers; collective.

    Args:
        given: tensors with their views and sides.
        function: of matrices (..., p, n); returns lists of so many numbers of each, and then new matrices.
        numbers: how many.
        writes: whether the new matrices take the place of the others.
    """
    dtensors = [Matrices(tensor, view, side) for tensor, view, side in given if is_dtensor(tensor)]
    applied = sharded.apply(dtensors, function, numbers=numbers, writes=writes) if dtensors else []
    found = {id(each.param): list(values) for each, values in zip(dtensors, applied, strict=True)}
    for tensor, view, side in given:
        if not is_dtensor(tensor):
            results = [function(x) for x in _matrices(tensor, view, side)]
            found[id(tensor)] = [torch.cat([each[k].reshape(-1) for each in results]) for k in range(numbers)]
            if writes:
                tensor.copy_(view.from_matrices([each[-1] for each in results], tensor.shape, side))
    return [found[id(tensor)] for tensor, _, _ in given]


def _matrices(tensor: Tensor, view: View, side: str) -> list[Tensor]:
    """The matrices of each part of a plain tensor, in the dtype to compute in."""
    return view.to_matrices(tensor.detach().to(compute_dtype(tensor.dtype)), side)


def rounding(dtype: torch.dtype, p: int) -> float:
    """The distance that rounding alone explains, 10·u·p; in half precision that can be all or nothing, so at most ½."""
    return min(10 * (torch.finfo(dtype).eps / 2) * p, 0.5)


@torch.no_grad()
def project_(tensor: TensorT, *, view: ViewLike = "matrix", side: Side = "auto", scale: Scale = 1.0) -> TensorT:
    """Replace every matrix by the nearest orthonormal one, times ``scale``, in place.

    Warns if a matrix does not have full rank: its nearest orthonormal matrix is then not unique.

    Example:
        >>> project_(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """
    try:
        check_values(tensor)
        seen = View.of(view).scaled(scale)
        seen.parts(tensor.shape, side)
        if not is_finite(tensor):
            raise ValueError("is not finite")
    except ValueError as error:
        raise ValueError(f"cannot project a tensor that {error}") from None
    (deficient,) = project_counting_([(tensor, seen, side)])
    if deficient:
        warn_user(f"the tensor {RANK_DEFICIENT.format(deficient)}")
    return tensor


RANK_DEFICIENT = (
    "has matrices without full rank ({} of them), whose nearest orthonormal matrix is arbitrary: "
    "orthogonalize_(..., init='random') draws one instead"
)


@torch.no_grad()
def project_counting_(given: Sequence[tuple[Tensor, View, str]]) -> list[int]:
    """:func:`project_` of many tensors without its checks: how many matrices of each do not have full rank."""
    with full_precision(*{tensor.device for tensor, _, _ in given}):
        counts = [flags.sum().double() for (flags,) in apply_to_matrices(given, _project, writes=True)]
        cut = {i: Matrices(tensor, view, side) for i, (tensor, view, side) in enumerate(given) if is_dtensor(tensor)}
        if cut:
            rows = torch.stack([counts[i].to(counts[min(cut)].device) for i in cut])[:, None]
            for i, row in zip(cut, sharded.sum_over_ranks(list(cut.values()), rows), strict=True):
                counts[i] = row[0]
    return [int(count) for count in counts]


def _project(y: Tensor) -> list[Tensor]:
    """1 for each of the matrices Y that do not have full rank, up to rounding, else 0; and the nearest to each."""
    nearest = stiefel.nearest(y)
    # the polar factor H of Y = HX has the singular values of Y as its eigenvalues, and is only p×p
    size = stiefel.max_entry(y).clamp_min(torch.finfo(real_dtype(y.dtype)).tiny)
    values = torch.linalg.eigvalsh(stiefel.sym((y / size[..., None, None]) @ nearest.mH))
    limit = 10 * torch.finfo(values.dtype).eps * values[..., -1].abs()
    return [(values[..., 0] <= limit).to(values.dtype), nearest]


@torch.no_grad()
def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite, on all ranks that share the tensor."""
    if is_dtensor(tensor):
        return sharded.is_finite(tensor)
    return bool(torch.isfinite(tensor).all())


@torch.no_grad()
def orthogonalize_(
    target: TensorOrModule,
    patterns: Patterns | None = None,
    *,
    view: ViewLike = "matrix",
    side: Side = "auto",
    scale: Scale = 1.0,
    init: Init = "project",
    det: int | None = None,
    generator: torch.Generator | None = None,
) -> TensorOrModule:
    """Make the matrices of a tensor, or of the parameters of a module that match patterns, orthonormal in place.

    Args:
        target: a tensor or a module.
        patterns: for a module, shell patterns on parameter names with their views, as in :func:`param_groups`.
        view: for a tensor, its view.
        side: the side that becomes orthonormal.
        scale: σ, for XXᴴ = σ²I: a number, or ``"rms"`` for √(rows/columns), as in the optimizers.
        init: ``"project"``, the nearest orthonormal matrix, or ``"random"``, a uniformly random one. Prefer random
            if matrices may not have full rank (Dirac-initialised kernels, a LoRA factor of zeros): their nearest
            orthonormal matrix is not unique, and projecting them warns.
            ``"hadamard"`` and ``"random-hadamard"`` write the first p rows of a Hadamard matrix of order n, with
            entries ±1/√n, and of one whose columns have random signs.
        det: ``+1`` or ``-1``: the determinant of square real matrices, by the sign of their first row. The optimizers
            keep it, as their steps are continuous.
        generator: random generator for random matrices.

    Example:
        >>> layer = orthogonalize_(nn.Linear(3, 3), {"weight": "matrix"})
        >>> bool(torch.dist(layer.weight @ layer.weight.T, torch.eye(3)) < 1e-6)
        True
    """
    check_choice("init", init, INITS)
    if det not in (None, 1, -1):
        raise ValueError(f"Invalid det: {det!r}; it is +1 or -1")
    if isinstance(target, nn.Module):
        if patterns is None:
            raise TypeError("orthogonalize_ of a module needs patterns, such as {'attn.*weight': 'matrix'}")
        _orthogonalize_module_(target, patterns, view, side, scale, init, det, generator)
        return target
    if not isinstance(target, Tensor):
        raise TypeError(f"orthogonalize_ takes a tensor or a module, but got {type(target).__name__}")
    if patterns is not None:
        raise TypeError("orthogonalize_ of a tensor takes view=..., not patterns")
    try:
        check_values(target)
        seen = View.of(view).scaled(scale)
        _check_init(target, seen, side, init, det)
    except ValueError as error:
        raise ValueError(f"the tensor {error}") from None
    if init == "project":
        project_(target, view=view, side=side, scale=scale)
    else:
        _write_(target, seen, side, init, generator)
    if det is not None:
        _set_determinant_(target, seen, side, det)
    return target


def _orthogonalize_module_(
    module: nn.Module,
    patterns: Patterns,
    view: ViewLike,
    side: Side,
    scale: Scale,
    init: Init,
    det: int | None,
    generator: torch.Generator | None,
) -> None:
    """All parameters are checked before one is changed."""
    matched = match(module, patterns)
    check_views(module, matched, view, side)
    work = [(name, param, options) for options, named in matched for name, param in named]
    for name, param, options in work:
        try:
            check_values(param)
            _check_init(param, View.of(options.get("view", view)), options.get("side", side), init, det)
        except ValueError as error:
            raise ValueError(f"parameter {name!r} {error}") from None
        if init == "project" and not is_finite(param):
            raise ValueError(f"parameter {name!r} is not finite and cannot be projected: use init='random'")
    given = [
        (param, View.of(options.get("view", view)).scaled(options.get("scale", scale)), options.get("side", side))
        for _, param, options in work
    ]
    if init == "project":
        for (name, _, _), deficient in zip(work, project_counting_(given), strict=True):
            if deficient:
                warn_user(f"parameter {name!r} {RANK_DEFICIENT.format(deficient)}")
    else:
        for param, own_view, own_side in given:
            _write_(param, own_view, own_side, init, generator)
    if det is not None:
        for param, own_view, own_side in given:
            _set_determinant_(param, own_view, own_side, det)


def _check_init(tensor: Tensor, view: View, side: str, init: Init, det: int | None) -> None:
    """Whether its matrices can be written so."""
    parts = view.parts(tensor.shape, side)
    if "hadamard" in init:
        for part in parts:
            stiefel.hadamard(part.n)
    if is_dtensor(tensor) and ("hadamard" in init or det is not None):
        raise ValueError("is a DTensor: call orthogonalize_ with a Hadamard matrix or a determinant before it is cut")
    if det is not None and (tensor.is_complex() or any(part.p != part.n for part in parts)):
        raise ValueError(f"has no determinant of {det:+d} to choose: its matrices must be real and square")


def _set_determinant_(tensor: Tensor, view: View, side: str, det: int) -> None:
    matrices = _matrices(tensor, view, side)
    for x in matrices:
        x[..., 0, :] *= (det * torch.linalg.det(x).sign())[..., None]
    tensor.copy_(view.from_matrices(matrices, tensor.shape, side))


def _write_(tensor: Tensor, view: View, side: str, init: Init, generator: torch.Generator | None) -> None:
    """Fresh matrices."""
    with full_precision(tensor.device):
        if is_dtensor(tensor):
            sharded.randomize_(tensor, view, side, generator)
            return
        drawn = [
            _fresh((*part.batch, part.p, part.n), init, compute_dtype(tensor.dtype), tensor.device, generator)
            for part in view.parts(tensor.shape, side)
        ]
    tensor.copy_(view.from_matrices(drawn, tensor.shape, side))


def _fresh(
    shape: tuple[int, ...], init: Init, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    if init == "random":
        return stiefel.random(*shape, dtype=dtype, device=device, generator=generator)
    rows = stiefel.hadamard(shape[-1], dtype=dtype, device=device)[: shape[-2]]
    if init == "hadamard":
        return rows.expand(shape).clone()
    signs = torch.randint(0, 2, (*shape[:-2], 1, shape[-1]), device=device, generator=generator)
    return rows * (2 * signs - 1).to(dtype)
