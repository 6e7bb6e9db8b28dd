"""Names to parameters: shell patterns on parameter names, param groups, and orthonormal initial values."""

import difflib
import glob
from collections.abc import Iterable, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthoptim.base import Base
from orthoptim.convolutions import check_convolution, convolutions
from orthoptim.user_warnings import warn_user
from orthoptim.views import VIEWS, View, ViewLike

Patterns = Mapping[str, str] | Mapping[str, View] | Mapping[str, str | View | Mapping[str, Any] | None]
"""Shell pattern on parameter names → view, or a dict of options with ``view`` among them; ``None``: no constraint.

The names of views are typed as ``str``, so that a dict may be kept in a variable of its own.
"""

Matched = list[tuple[dict[str, Any], list[tuple[str, nn.Parameter]]]]

# What torch.compile and activation checkpointing put into the names of the parameters inside of them.
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}


class _Unset(Enum):
    """The value of an argument that is not given."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return self.value


NOT_GIVEN = _Unset.NOT_GIVEN


def match(module: nn.Module, patterns: Patterns) -> Matched:
    """For each pattern with a view its options, and the named parameters it is the first to match.

    A parameter that has several names (tied weights) is matched by any of them, and called by the first.

    Raises:
        ValueError: if a pattern matches no parameter that an earlier one has not taken.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"patterns are matched to the parameters of a module, but got {type(module).__name__}")
    if not isinstance(patterns, Mapping):
        raise TypeError(f"patterns must be a dict such as {{'attn.*weight': 'matrix'}}, but got {patterns!r}")
    left = dict(module.named_parameters())
    names: dict[nn.Parameter, list[str]] = {param: [] for param in left.values()}
    for name, param in module.named_parameters(remove_duplicate=False):
        names[param] += dict.fromkeys([_unwrapped(name), name])
    matched: Matched = []
    for pattern, value in patterns.items():
        options = dict(value) if isinstance(value, Mapping) else {"view": value}
        view = options.get("view", "matrix")
        try:
            view = None if view is None else View.of(view)
        except ValueError:
            raise ValueError(
                f"Invalid view of pattern {pattern!r}: {view!r}; use {', '.join(VIEWS)}, a View, or None"
            ) from None
        found = [name for name, param in left.items() if _matches(pattern, names[param])]
        if not found:
            raise ValueError(_no_match(pattern, names.values()))
        named = [(name, left.pop(name)) for name in found]
        if view is not None:
            matched.append((options, named))
    return matched


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _matches(pattern: str, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _no_match(pattern: str, names_of_all: Iterable[list[str]]) -> str:
    names = [name for names in names_of_all for name in names]
    for name in names:
        if fnmatchcase(name, pattern):
            return f"pattern {pattern!r} matches only parameters that earlier patterns have taken, such as {name!r}"
    if not names:
        return f"pattern {pattern!r} matches no parameter: the module has none"
    if any(name.startswith(pattern + ".") for name in names):
        return f"pattern {pattern!r} is a module, not a parameter: did you mean {pattern + '.*'!r}?"
    near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.3) or names[:5]
    return f"pattern {pattern!r} matches no parameter; near names: {', '.join(near)}"


def check_views(module: nn.Module, matched: Matched, view: ViewLike, side: str) -> None:
    """Refuse, by name, a parameter that cannot be seen as asked, or would be seen as nobody expects.

    Args:
        module: the module.
        matched: its parameters, with options.
        view: where these do not say.
        side: where these do not say.
    """
    layers = convolutions(module)
    for options, named in matched:
        own_view, own_side = View.of(options.get("view", view)), options.get("side", side)
        for name, param in named:
            try:
                own_view.parts(param.shape, own_side)
                if param in layers:
                    check_convolution(param, layers[param], own_view, own_side)
            except ValueError as error:
                raise ValueError(f"parameter {name!r} {error}") from None


def param_groups(
    module: nn.Module,
    patterns: Patterns,
    *,
    lr: float | Tensor | None = None,
    base: Base | None = None,
    rest: Mapping[str, Any] | _Unset | None = NOT_GIVEN,
    **options: Any,
) -> list[dict[str, Any]]:
    """Param groups for an orthoptimizer, one per pattern, and one for all other parameters.

    Args:
        module: the model.
        patterns: shell patterns on parameter names, each with its view or a dict of options; the first match counts. A
            view of None leaves the parameters unconstrained. A tied parameter is matched by any of its names; what
            ``torch.compile`` adds to names is ignored.
        lr: learning rate of the constrained groups (default: that of the orthoptimizer).
        base: their base optimizer (default: that of the orthoptimizer).
        rest: options of the ordinary group that takes all other parameters, such as
            ``{"algorithm": "adamw", "lr": 1e-3}``. The group includes frozen parameters, which are stepped as soon as
            they require gradients. With None they are left to another optimizer; if ``rest`` is not given and there
            are other trainable parameters, they are left out with a warning.
        **options: further options of the constrained groups.

    The filters of convolutions with groups, and of transposed ones, are refused where their shorter side is not what
    the name promises, unless ``side`` says that it is meant; see :mod:`orthoptim.convolutions`.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        >>> groups = param_groups(model, {"0.weight": "matrix"}, lr=0.1, rest={"algorithm": "adamw", "lr": 1e-3})
        >>> [group["param_names"] for group in groups]
        [['0.weight'], ['0.bias', '1.weight', '1.bias']]
    """
    if not isinstance(rest, Mapping | None | _Unset):
        raise TypeError(f"rest must be a dict such as {{'algorithm': 'adamw', 'lr': 1e-3}}, or None, but got {rest!r}")
    shared = {"lr": lr, "base": base}
    common = {**{key: value for key, value in shared.items() if value is not None}, **options}
    matched = match(module, patterns)
    check_views(module, matched, common.get("view", "matrix"), common.get("side", "auto"))
    groups: list[dict[str, Any]] = [{**_with_names(named), **common, **own} for own, named in matched]
    taken = {param for _, named in matched for _, param in named}
    others = [(name, param) for name, param in module.named_parameters() if param not in taken]
    if isinstance(rest, Mapping):
        if others:
            groups.append({"algorithm": "adamw", **rest, **_with_names(others)})
    elif rest is NOT_GIVEN:
        _warn_of_others([name for name, param in others if param.requires_grad])
    return groups


def _with_names(named: list[tuple[str, nn.Parameter]]) -> dict[str, Any]:
    """Parameters and their names as torch keeps them in a group: not all tools take pairs."""
    return {"params": [param for _, param in named], "param_names": [name for name, _ in named]}


def _warn_of_others(names: list[str]) -> None:
    if names:
        shown = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        warn_user(
            f"param_groups leaves trainable parameters out ({len(names)}: {shown}), which are then not trained: give "
            "rest={'algorithm': 'adamw', 'lr': 1e-3}, or rest=None if another optimizer steps them"
        )


# Parametrizations and manifolds of other libraries whose matrices are orthonormal, by module and class. By name, since
# importing those libraries to look would make them requirements.
_ORTHOGONAL_PARAMETRIZATIONS = {
    "torch": {"_Orthogonal"},
    "geotorch": {"SO", "Stiefel"},
}
_GEOOPT_MANIFOLDS = {"Stiefel", "CanonicalStiefel", "EuclideanStiefel", "EuclideanStiefelExact"}


def adopt_(model: nn.Module) -> dict[str, str]:
    """Convert the orthogonal parameters of other libraries to plain parameters, in place, and return their patterns.

    - Parametrizations by ``torch.nn.utils.parametrizations.orthogonal`` and ``geotorch.orthogonal`` are removed; the
      parameter keeps its value.
    - ``geoopt.ManifoldParameter`` on a Stiefel manifold becomes a plain parameter of the same value.

    Both make the shorter side of the last two dims orthonormal: the view ``"matrix"``. Parameters are replaced, so
    build the optimizer afterwards. Other parametrizations stay as they are.

    Args:
        model: the model.

    Returns:
        A pattern for each parameter, for :func:`param_groups`, :func:`orthogonalize_` and :func:`wrap`.

    Raises:
        ValueError: if an orthogonal parametrization is one of several on a tensor, whose product is not orthogonal.
            Then nothing is changed.

    Example:
        >>> model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 2))
        >>> adopt_(model)
        {'0.weight': 'matrix'}
        >>> model[0]
        Linear(in_features=4, out_features=4, bias=True)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"adopt_ takes a module, but got {type(model).__name__}")
    parametrized = list(_parametrized(model))
    on_manifolds = list(_on_stiefel_manifolds(model))
    kept: dict[int, nn.Parameter] = {}  # a tied parameter stays tied
    for module, name, _ in parametrized:
        parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    for module, name, _ in on_manifolds:
        param = module._parameters[name]
        assert param is not None
        plain = nn.Parameter(param.detach().as_subclass(Tensor), requires_grad=param.requires_grad)
        module._parameters[name] = kept.setdefault(id(param), plain)
    return {glob.escape(full_name): "matrix" for _, _, full_name in parametrized + on_manifolds}


def _parametrized(model: nn.Module) -> Iterable[tuple[nn.Module, str, str]]:
    """Modules with the tensors of which an orthogonal parametrization is the only one, and their full names."""
    for prefix, module in model.named_modules():
        if not parametrize.is_parametrized(module):
            continue
        for name, chain in module.parametrizations.items():
            if any(map(_is_orthogonal_parametrization, chain)):
                full_name = f"{prefix}.{name}" if prefix else name
                if len(chain) > 1:
                    kinds = ", ".join(type(each).__name__ for each in chain)
                    raise ValueError(
                        f"{full_name!r} has several parametrizations ({kinds}), whose result is not orthogonal: remove "
                        "the others first"
                    )
                yield module, name, full_name


def _is_orthogonal_parametrization(parametrization: nn.Module) -> bool:
    kind = type(parametrization)
    return kind.__name__ in _ORTHOGONAL_PARAMETRIZATIONS.get(kind.__module__.partition(".")[0], ())


def _on_stiefel_manifolds(model: nn.Module) -> Iterable[tuple[nn.Module, str, str]]:
    """Modules with the names of their parameters on a Stiefel manifold of geoopt, and the full names."""
    for prefix, module in model.named_modules():
        for name, param in module._parameters.items():
            manifold = type(getattr(param, "manifold", None))
            if manifold.__module__.partition(".")[0] == "geoopt" and manifold.__name__ in _GEOOPT_MANIFOLDS:
                yield module, name, f"{prefix}.{name}" if prefix else name
