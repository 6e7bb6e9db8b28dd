"""Names to parameters: shell patterns on parameter names, param groups, and orthonormal initial values."""

import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from orthoptim import stiefel
from orthoptim.base import Base
from orthoptim.distributed.detect import is_dtensor
from orthoptim.views import (
    VIEWS,
    Side,
    View,
    compute_dtype,
    from_matrices,
    full_precision,
    is_finite,
    matrix_shape,
    placed,
    project_,
)

Patterns = Mapping[str, str | Mapping[str, Any]]
"""Shell pattern on parameter names → view, or a dict of options with ``view`` among them."""

TensorOrModule = TypeVar("TensorOrModule", Tensor, nn.Module)

INITS = ("project", "random")


def match(module: nn.Module, patterns: Patterns) -> list[tuple[dict[str, Any], list[tuple[str, nn.Parameter]]]]:
    """For each pattern its options and the named parameters it is the first to match.

    Raises:
        ValueError: if a pattern matches no parameter that an earlier one has not taken.
    """
    if not isinstance(patterns, Mapping):
        raise TypeError(f"patterns must be a dict such as {{'attn.*weight': 'matrix'}}, but got {patterns!r}")
    left = dict(module.named_parameters())
    names = list(left)
    matched = []
    for pattern, value in patterns.items():
        options = {"view": value} if isinstance(value, str) else dict(value)
        if options.get("view", "matrix") not in VIEWS:
            raise ValueError(f"Invalid view of pattern {pattern!r}: {options['view']!r}; use {', '.join(VIEWS)}")
        found = [name for name in left if fnmatchcase(name, pattern)]
        if not found:
            raise ValueError(_no_match(pattern, names, taken=set(names) - set(left)))
        matched.append((options, [(name, left.pop(name)) for name in found]))
    return matched


def _no_match(pattern: str, names: list[str], taken: set[str]) -> str:
    for name in names:
        if fnmatchcase(name, pattern):
            return f"pattern {pattern!r} matches only parameters that earlier patterns have taken, such as {name!r}"
    if not names:
        return f"pattern {pattern!r} matches no parameter: the module has none"
    if any(name.startswith(pattern + ".") for name in names):
        return f"pattern {pattern!r} is a module, not a parameter: did you mean {pattern + '.*'!r}?"
    near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.3) or names[:5]
    return f"pattern {pattern!r} matches no parameter; near names: {', '.join(near)}"


def param_groups(
    module: nn.Module,
    patterns: Patterns,
    *,
    lr: float | Tensor | None = None,
    base: Base | None = None,
    rest: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Param groups for an orthoptimizer, one per pattern, and one for all other parameters.

    Args:
        module: the model.
        patterns: shell patterns on parameter names, each with its view or a dict of options; the first match counts.
        lr: learning rate of the constrained groups (default: that of the orthoptimizer).
        base: their base optimizer (default: that of the orthoptimizer).
        rest: options of the ordinary group that takes the other trainable parameters, such as
            ``{"algorithm": "adamw", "lr": 1e-3}``; with None they are left out.
        **options: further options of the constrained groups.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        >>> groups = param_groups(model, {"0.weight": "matrix"}, lr=0.1, rest={"algorithm": "adamw", "lr": 1e-3})
        >>> [[name for name, _ in group["params"]] for group in groups]
        [['0.weight'], ['0.bias', '1.weight', '1.bias']]
    """
    shared = {"lr": lr, "base": base}
    common = {**{key: value for key, value in shared.items() if value is not None}, **options}
    groups: list[dict[str, Any]] = []
    taken: set[str] = set()
    for own, named in match(module, patterns):
        groups.append({"params": named, **common, **own})
        taken.update(name for name, _ in named)
    if rest is not None:
        others = [(name, p) for name, p in module.named_parameters() if name not in taken and p.requires_grad]
        if others:
            groups.append({"algorithm": "adamw", **rest, "params": others})
    return groups


@torch.no_grad()
def orthogonalize_(
    target: TensorOrModule,
    patterns: Patterns | None = None,
    *,
    view: View = "matrix",
    side: Side = "auto",
    init: str = "project",
    generator: torch.Generator | None = None,
) -> TensorOrModule:
    """Make matrices orthonormal, in place: those of a tensor, or of the parameters of a module that patterns name.

    Args:
        target: a tensor or a module.
        patterns: for a module, shell patterns on parameter names with their views, as in :func:`param_groups`.
        view: for a tensor, its view.
        side: the side that becomes orthonormal.
        init: ``"project"``, the nearest orthonormal matrix, or ``"random"``, a uniformly random one. Prefer random
            where matrices may not have full rank (Dirac-initialised kernels): their nearest point is arbitrary.
        generator: for random ones.

    Example:
        >>> layer = orthogonalize_(nn.Linear(3, 3), {"weight": "matrix"})
        >>> bool(torch.dist(layer.weight @ layer.weight.T, torch.eye(3)) < 1e-6)
        True
    """
    if init not in INITS:
        raise ValueError(f"Invalid init: {init!r}; choose one of {', '.join(INITS)}")
    if isinstance(target, nn.Module):
        if patterns is None:
            raise TypeError("orthogonalize_ of a module needs patterns, such as {'attn.*weight': 'matrix'}")
        work = []
        for options, named in match(target, patterns):
            kind, of = options.get("view", view), options.get("side", side)
            for name, param in named:
                try:
                    matrix_shape(param.shape, kind, of)
                except ValueError as error:
                    raise ValueError(f"parameter {name!r} {error}") from None
                if init == "project" and not is_finite(param):
                    raise ValueError(f"parameter {name!r} is not finite and cannot be projected: use init='random'")
                work.append((param, kind, of))
        for param, kind, of in work:
            _orthogonalize_tensor_(param, kind, of, init, generator)
        return target
    if patterns is not None:
        raise TypeError("orthogonalize_ of a tensor takes view=..., not patterns")
    _orthogonalize_tensor_(target, view, side, init, generator)
    return target


def _orthogonalize_tensor_(
    tensor: Tensor, view: View, side: Side, init: str, generator: torch.Generator | None
) -> None:
    batch, p, n, _ = matrix_shape(tensor.shape, view, side)
    if init == "project":
        project_(tensor, view=view, side=side)
        return
    if is_dtensor(tensor):
        with full_precision(tensor):
            placed().randomize_(tensor, view, side, generator)
        return
    dtype = compute_dtype(tensor.dtype)
    with full_precision(tensor):
        x = stiefel.random(*batch, p, n, dtype=dtype, device=tensor.device, generator=generator)
    tensor.copy_(from_matrices(x, tensor.shape, view, side))
