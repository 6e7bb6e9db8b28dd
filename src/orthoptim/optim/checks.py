"""Construction checks: a parameter that cannot be trained as asked is refused before anything is changed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from orthoptim import stiefel
from orthoptim.distributed import matrices as sharded
from orthoptim.distributed.placements import check_backend, cutting_dims
from orthoptim.engine.naming import named, parameter_name
from orthoptim.functional import apply_to_matrices, rounding
from orthoptim.optim.options import NORM_IS_FIXED
from orthoptim.parts import SIDES, scale_factor
from orthoptim.precision import full_precision
from orthoptim.tensors import check_dtype, compute_dtype, has_values, is_dtensor
from orthoptim.user_warnings import warn_user
from orthoptim.validation import check_bool, check_choice, check_positive
from orthoptim.views import View

_REPAIRABLE = 0.9  # ‖XXᴴ−I‖₂ below which Newton–Schulz lands safely on the nearest point
_WORTH_A_WARNING = 1e-3
# Pieces drawn by ranks with different seeds are p/√n away, or so, once put together; that was not meant.
_ASSEMBLED = 0.1


def check_lr(lr: Any) -> None:
    """The learning rate is a finite number ≥ 0, or a tensor of one."""
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not has_values(lr):
            return
        lr = lr.item()
    if not isinstance(lr, int | float):
        raise TypeError(f"lr must be a number or a tensor, but got {lr!r}")
    if not 0.0 <= lr < math.inf:
        raise ValueError(f"Invalid learning rate: {lr}")


def check_params(params: Any, label: str) -> Any:
    """Refuse a module in place of its parameters, and an iterator that has none left; makes a list of an iterator.

    Raises:
        TypeError: for a module.
        ValueError: for an empty iterator.
    """
    if isinstance(params, nn.Module):
        raise TypeError(
            f"{label} takes parameters, not a {type(params).__name__}: pass model.parameters(), or "
            "orthoptim.param_groups(model, {...}) to constrain some of them"
        )
    if not isinstance(params, Iterator):
        return params
    listed = list(params)
    if not listed:
        raise ValueError(
            f"{label} got an iterator without parameters: if it has been used before, it is consumed; pass a list"
        )
    return listed


def check_naming(params: Any, group: Mapping[str, Any], others: Sequence[Mapping[str, Any]], label: str) -> None:
    """All groups of an optimizer have names, or none."""
    listed = params if isinstance(params, list | tuple) else []
    has_names = "param_names" in group or any(isinstance(each, tuple) for each in listed)
    if others and has_names != ("param_names" in others[0]):
        here, there = ("with", "have none") if has_names else ("without", "have them")
        raise ValueError(
            f"{label} gives parameters {here} names, but the groups before it {there}: give all as pairs "
            "(name, parameter), as model.named_parameters() does, or none"
        )


def check_rate(lr: Any) -> None:
    """Before a step: refuse a learning rate that is no number, while nothing has been changed; any number is taken."""
    if lr.numel() != 1 if isinstance(lr, Tensor) else not isinstance(lr, Real):
        check_lr(lr)


def check_switches(group: Mapping[str, Any]) -> None:
    """The options that every method has."""
    check_choice("side", group["side"], SIDES)
    scale_factor(group["scale"], 1, 1)
    check_bool("maximize", group["maximize"])
    check_bool("compile", group["compile"])
    check_bool("capturable", group["capturable"])
    check_positive("block_cap_mb", group["block_cap_mb"])


def check_memory(groups: Sequence[Mapping[str, Any]], new: Mapping[str, Any]) -> None:
    """Refuse a constrained parameter that shares some of its memory with another: a step of one would move the other.

    All of it may be shared, as by tied weights: the matrices are the same then.

    Args:
        groups: all groups.
        new: the one whose constrained parameters are to be checked.
    """
    storages: dict[int, list[tuple[int, int, int, int]]] = {}
    for index, group in enumerate(groups):
        for position, param in enumerate(group["params"]):
            if not is_dtensor(param) and has_values(param) and param.layout is torch.strided and param.numel() > 0:
                places = storages.setdefault(param.untyped_storage().data_ptr(), [])
                places.append((*_extent(param), index, position))
    constrained = {id(param) for param in new["params"]}
    for places in storages.values():
        reached: list[tuple[int, int, int, int]] = []  # those that do not end before the next begins
        for place in sorted(places):
            reached = [other for other in reached if other[1] >= place[0]]
            for other in reached:
                pair = [groups[index]["params"][position] for *_, index, position in (place, other)]
                if any(id(param) in constrained for param in pair) and _overlap(*pair):
                    one, two = (parameter_name(groups[i], at, f"group {i}") for *_, i, at in (place, other))
                    raise ValueError(
                        f"{one} shares memory with {two}, so that a step of one moves the other: clone() it"
                    )
            reached.append(place)


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage have some of their entries in one place, and are not the same."""
    if (a.storage_offset(), a.shape, a.stride()) == (b.storage_offset(), b.shape, b.stride()):
        return False
    places = torch.zeros(max(_extent(a)[1], _extent(b)[1]) + 1, dtype=torch.bool)
    places.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(places.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _extent(a: Tensor) -> tuple[int, int]:
    """The first and the last place of a tensor in its storage."""
    first = int(a.storage_offset())
    return first, first + sum((size - 1) * stride for size, stride in zip(a.shape, a.stride(), strict=True))


def check_group(group: Mapping[str, Any], label: str) -> None:
    """Everything that can be said about a constrained group without looking at values."""
    check_lr(group["lr"])
    if group.get("weight_decay", 0) != 0:
        raise ValueError(
            f"{label}: {NORM_IS_FIXED}; put the parameters to be decayed into an ordinary group (algorithm='adamw')"
        )
    for name, param in named(group, label):
        try:
            _refuse_flattened(param)
            if is_dtensor(param):
                check_backend(param, View.of(group["view"]))
            if param.layout is not torch.strided:
                raise ValueError(f"has layout {param.layout}: only dense parameters can be orthogonal")
            check_dtype(param.dtype)
            View.of(group["view"]).parts(param.shape, group["side"])
            if param.numel() == 0 and is_dtensor(param):
                raise ValueError("has no matrices: leave it out, as nothing is there to be sharded")
            if param.is_neg():
                raise ValueError("is a lazily negated view: clone() it first")
            if any(stride == 0 and size > 1 for stride, size in zip(param.stride(), param.shape, strict=True)):
                raise ValueError("is expanded, so that several entries share one place in memory: clone() it first")
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None


def _refuse_flattened(param: Tensor) -> None:
    """Refuse parameters whose matrices other tools have cut into one-dimensional pieces."""
    tool = ""
    if getattr(param, "_is_flat_param", False) or (getattr(param, "_fsdp_flattened", False) and param.ndim == 1):
        tool = "FSDP1 (FullyShardedDataParallel)"
    elif hasattr(param, "ds_id"):
        tool = "DeepSpeed ZeRO"
    elif param.ndim == 1 and (hasattr(param, "main_grad") or hasattr(param, "main_param")):
        tool = "Megatron's distributed optimizer"
    if tool:
        raise ValueError(
            f"is flattened by {tool}, and no rank knows its matrices: shard the model by "
            "torch.distributed.fsdp.fully_shard (FSDP2), whose parameters keep their shapes"
        )
    if param.ndim < 2:
        raise ValueError(
            f"has {param.ndim} dims, and a matrix has two: leave it to an ordinary group (algorithm='adamw'); or, if "
            "FSDP1, DeepSpeed ZeRO or Megatron has flattened it, shard the model by "
            "torch.distributed.fsdp.fully_shard, whose parameters keep their shapes"
        )


@torch.no_grad()
def repair_(groups: Mapping[int, Mapping[str, Any]]) -> dict[Tensor, Tensor]:
    """Bring nearly orthonormal parameters onto the manifold; refuse the others. All are checked before one is changed.

    Each matrix of a DTensor is measured and repaired on one rank.

    Args:
        groups: constrained param groups by their index.

    Returns:
        The parameters that were moved, with their former values.

    Raises:
        ValueError: for a parameter that is not finite, or too far away to know what was meant.
    """
    given = [
        (name, param, View.of(group["view"]).scaled(group["scale"]), group["side"])
        for index, group in groups.items()
        for name, param in named(group, f"group {index}")
    ]
    with full_precision(*{param.device for _, param, _, _ in given}):
        distances = _distances([(param, view, side) for _, param, view, side in given])
        repairs = []
        for name, param, view, side in given:
            if param.is_meta:
                warn_user(
                    f"{name} is on the meta device and cannot be checked; module.to_empty() makes new parameters, "
                    "which this optimizer does not know: build it after the model has its values"
                )
            if id(param) in distances and _needs_repair(name, param, view, side, *distances[id(param)]):
                repairs.append((param, view, side))
        former = {param: param.detach().clone() for param, _, _ in repairs}
        apply_to_matrices(repairs, lambda x: [stiefel.newton_schulz(x)], numbers=0, writes=True)
    return former


def _needs_repair(name: str, param: Tensor, view: View, side: str, far: float, spectral: float) -> bool:
    """Whether a parameter is to be moved to the manifold; raises where it is too far away for that."""
    if not math.isfinite(far):
        raise ValueError(f"{name} is not finite: load or initialise it before building the optimizer")
    if far <= rounding(param.dtype, max(part.p for part in view.parts(param.shape, side))):
        return False
    shown = view if view.is_divided else view.name
    scale = "" if view.scale == 1 else f", scale={view.scale!r}"
    cure = (
        f"call orthoptim.orthogonalize_ on it, with view={shown!r}{scale} and side={side!r}, before building the "
        "optimizer"
    )
    if is_dtensor(param) and far > _ASSEMBLED and cutting_dims(param, view):
        raise ValueError(
            f"{name} is not orthonormal (distance {far:.3g}) when its shards are put together: ranks may have "
            f"initialised them with different seeds; {cure}"
        )
    if spectral >= _REPAIRABLE:
        raise ValueError(f"{name} is not orthonormal (distance {far:.3g}): {cure}")
    if far > _WORTH_A_WARNING:
        warn_user(
            f"{name} was not orthonormal (distance {far:.3g}) and has been moved to the nearest point that is; "
            "call orthoptim.orthogonalize_ to do so yourself (load_state_dict takes this back)"
        )
    return True


def _distances(given: Sequence[tuple[Tensor, View, str]]) -> dict[int, tuple[float, float]]:
    """The largest ‖XXᴴ − I‖_F and ‖XXᴴ − I‖₂ of the matrices of each parameter that has values, by ``id``."""
    present = [(param, view, side) for param, view, side in given if has_values(param) and param.numel()]
    values = apply_to_matrices(present, _both_distances, numbers=2)
    measured = {id(param): pair for (param, _, _), pair in zip(present, values, strict=True)}
    cut = [param for param, _, _ in present if is_dtensor(param)]
    found = {key: (float(far.max()), float(spectral.max())) for key, (far, spectral) in measured.items() if far.numel()}
    if cut:
        columns = [sharded.largest(cut, [measured[id(param)][k] for param in cut]) for k in range(2)]
        found |= {id(param): pair for param, *pair in zip(cut, *columns, strict=True)}  # type: ignore[misc]
    return found


def _both_distances(x: Tensor) -> list[Tensor]:
    """‖XXᴴ − I‖_F and, where that does not bound it well enough, ‖XXᴴ − I‖₂, which is dearer."""
    far = stiefel.distance(x)
    spectral = far.clone()
    unclear = (far >= _REPAIRABLE) & torch.isfinite(far)
    if bool(unclear.any()):
        spectral[unclear] = torch.linalg.eigvalsh(stiefel.defect(x[unclear])).abs().amax(-1)
    return [far, spectral]


def check_gradients(groups: list[dict[str, Any]], chosen: Iterable[int]) -> None:
    """Before a step: refuse sparse gradients while nothing has been changed, not even a state created.

    Args:
        groups: the param groups.
        chosen: which of them to look at.
    """
    for index in chosen:
        group = groups[index]
        for position, param in enumerate(group["params"]):
            if is_dtensor(param):  # whose gradients are dense; to look at them takes time
                continue
            grad = param.grad
            if grad is not None and grad.layout is not torch.strided:
                name = parameter_name(group, position, f"group {index}")
                raise RuntimeError(f"{name} has a sparse gradient, which orthoptim does not support: use sparse=False")


def check_precision(group: Mapping[str, Any], params: list[Tensor], states: list[Any], buffer: str, index: int) -> None:
    """Before a step: refuse a state in another shape or precision than the parameter, which somebody has changed since.

    Args:
        group: the group.
        params: those of its parameters that have a gradient.
        states: their states.
        buffer: the name of a state tensor that has an entry for each of the parameter.
        index: that of the group.
    """
    dtypes = {param.dtype for param in params}
    buffers = [state.get(buffer) for state in states]
    shapes = all(value is None or value.shape == param.shape for param, value in zip(params, buffers, strict=True))
    if shapes and len(dtypes) < 2 and {value.dtype for value in buffers if value is not None} <= dtypes:
        return  # a thousand parameters take no time so
    expected = compute_dtype if "view" in group else lambda dtype: dtype
    for param, value in zip(params, buffers, strict=True):
        if value is not None and value.shape != param.shape:
            position = next(i for i, each in enumerate(group["params"]) if each is param)
            raise RuntimeError(
                f"{parameter_name(group, position, f'group {index}')} has a state of shape {tuple(value.shape)}: "
                "somebody has given it another shape since; build a new optimizer"
            )
        if value is not None and value.dtype != expected(param.dtype):
            position = next(i for i, each in enumerate(group["params"]) if each is param)
            raise RuntimeError(
                f"{parameter_name(group, position, f'group {index}')} is now {param.dtype}, but its state is "
                f"{value.dtype}: cast the model before building the optimizer, or let "
                "opt.load_state_dict(opt.state_dict()) cast the state"
            )
