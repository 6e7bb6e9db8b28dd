"""Loading a state: it is read as a whole, and refused in one line where it does not fit, before anything is changed."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import StateDict

from orthoptim.distributed.handshake import agree
from orthoptim.distributed.state import init_state, place
from orthoptim.engine.naming import parameter_name
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.state import EntrySpec, empty_entries, specify
from orthoptim.optim import ordinary
from orthoptim.optim.options import complete
from orthoptim.tensors import has_values, is_dtensor
from orthoptim.views import View

Group = dict[str, Any]
Specs = Mapping[str, EntrySpec]


class Loaded(NamedTuple):
    """What takes the place of an optimizer's groups and state."""

    groups: list[Group]
    state: defaultdict[Any, Any]


def _check_saved(groups: Sequence[Group], state_dict: StateDict) -> None:
    """Refuse a state dict whose groups and parameters are not those of these groups."""
    for key, kind in (("param_groups", list | tuple), ("state", Mapping)):
        if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get(key), kind):
            raise ValueError(f"loaded state dict has no {key!r}: it was not saved by an optimizer")
    saved_groups, states = state_dict["param_groups"], state_dict["state"]
    if len(saved_groups) != len(groups):
        raise ValueError("loaded state dict has a different number of parameter groups")
    owner: dict[Any, str] = {}
    for index, (group, saved) in enumerate(zip(groups, saved_groups, strict=True)):
        _check_saved_group(group, saved, index)
        for position, key in enumerate(saved["params"]):
            label = parameter_name(group, position, f"group {index}")
            if key in owner:
                raise ValueError(f"loaded state dict has one state, {key!r}, for {owner[key]} and {label}")
            owner[key] = label
            entries = states.get(key, {})
            if not isinstance(entries, Mapping):
                given = type(entries).__name__
                raise ValueError(f"loaded state dict has a {given} for the state of {label}: it must be a dict")
    strangers = [key for key, value in states.items() if key not in owner and isinstance(value, Mapping)]
    if strangers:
        raise ValueError(
            f"loaded state dict has a state for parameter {strangers[0]!r}, which none of its groups holds: it was "
            "saved by an optimizer with more parameters"
        )


def _check_saved_group(group: Group, saved: Any, index: int) -> None:
    params = saved.get("params") if isinstance(saved, Mapping) else None
    if not isinstance(params, list | tuple) or not all(isinstance(key, int | str) for key in params):
        raise ValueError(f"loaded state dict has no 'params' in group {index}: it was not saved by an optimizer")
    if len(params) != len(group["params"]):
        raise ValueError(
            "loaded state dict contains a parameter group that doesn't match the size of optimizer's group "
            f"({len(params)} parameters in group {index}, not {len(group['params'])})"
        )
    names = saved.get("param_names", [""] * len(params))
    if not isinstance(names, list | tuple) or len(names) != len(params):
        raise ValueError(f"loaded state dict has 'param_names' in group {index} that are not a name for each parameter")
    algorithm = saved.get("algorithm")
    if algorithm != group["algorithm"]:
        raise ValueError(
            f"loaded state dict has algorithm {algorithm!r} in group {index}, this optimizer has "
            f"{group['algorithm']!r}: it was saved by another optimizer"
        )
    for option in ("view", "side", "scale", "base"):
        if option in saved and _as_option(option, saved[option]) != _as_option(option, group.get(option)):
            raise ValueError(
                f"loaded state dict has {option} {saved[option]!r} in group {index}, this optimizer has "
                f"{group.get(option)!r}: build it as it was saved"
            )


def _as_option(option: str, value: Any) -> Any:
    """A value to compare: a view is one view, whether it is written as a name, as a dict or as itself."""
    try:
        return View.of(value) if option == "view" else value
    except ValueError:
        return value


@torch.no_grad()
def read(optimizer: Any, state_dict: StateDict) -> Loaded:
    """The groups and the state that a state dict stands for, complete. It is copied; nothing is changed.

    Collective for DTensors: what is wrong on one rank is raised on all that share them.

    Args:
        optimizer: the :class:`Orthoptimizer` that is to have them.
        state_dict: what was saved.

    Raises:
        ValueError: where the state dict does not fit.
    """
    groups = optimizer.param_groups
    new_groups: list[Group] = []
    work: list[tuple[Tensor, Group, dict[str, EntrySpec], dict[str, Any]]] = []
    error = None
    try:
        _check_saved(groups, state_dict)
        for index, (group, saved) in enumerate(zip(groups, state_dict["param_groups"], strict=True)):
            new = _read_group(optimizer, group, saved, index)
            new_groups.append(new)
            for position, (param, key) in enumerate(zip(new["params"], saved["params"], strict=True)):
                entries = {name: value for name, value in state_dict["state"].get(key, {}).items() if value is not None}
                if entries:  # else it has never stepped
                    specs = specify_entries(type(optimizer), param, new)
                    _check_entries(entries, specs, param, parameter_name(new, position, f"group {index}"))
                    work.append((param, new, specs, entries))
    except Exception as caught:  # to be raised on all ranks
        error = caught
    agree([param for group in groups for param in group["params"]], {}, error)
    keys = {key for saved in state_dict["param_groups"] for key in saved["params"]}
    # what belongs to no parameter is kept, as torch does
    state = defaultdict(dict, {key: value for key, value in state_dict["state"].items() if key not in keys})
    for param, group, specs, entries in work:
        state[param] = {
            name: _as_state(entries[name], spec, param, group)
            for name, spec in specs.items()
            if name in entries and not spec.dropped
        }
        if group["algorithm"] not in ordinary.DEFAULTS:
            init_state(param, UpdateRule(type(optimizer), 0, group).kinds, group, state[param])
    return Loaded(new_groups, state)


def specify_entries(method: type[Any], param: Tensor, group: Group) -> dict[str, EntrySpec]:
    """What the state of a parameter may hold."""
    if group["algorithm"] in ordinary.DEFAULTS:
        return ordinary.specify(param, group)
    # what was made while an option was on stays in the state when it is switched off
    switched_on = UpdateRule(method, 0, {key: value or True for key, value in group.items()})
    every = specify(param, group, switched_on.kinds)
    optional = {name: spec._replace(optional=True) for name, spec in every.items()}
    return optional | specify(param, group, UpdateRule(method, 0, group).kinds)


def _read_group(optimizer: Any, group: Group, saved: Mapping[str, Any], index: int) -> Group:
    """A saved group with the parameters of the present one, complete and checked."""
    new = deepcopy({key: value for key, value in saved.items() if key != "params"})
    if "param_names" in group:
        new.setdefault("param_names", group["param_names"])
    new = {"params": group["params"], **new}
    try:
        if new["algorithm"] in ordinary.DEFAULTS:
            new = ordinary.DEFAULTS[new["algorithm"]] | new
            ordinary.check(new)
        else:
            new = complete(new, optimizer.defaults, optimizer.option_names, optimizer.known_names())
            optimizer._check_group(new, f"group {index}")
    except Exception as error:  # whatever a check of hostile values may raise
        raise ValueError(f"loaded state dict has invalid options in group {index}: {error}") from error
    for option in ("view", "side", "scale", "base"):
        if new.get(option) != group.get(option):
            raise ValueError(
                f"loaded state dict has no {option} in group {index}, for which the default is {new.get(option)!r}, "
                f"but this optimizer has {group.get(option)!r}: build it as it was saved"
            )
    return new


def _check_entries(entries: Mapping[str, Any], specs: Specs, param: Tensor, label: str) -> None:
    """Refuse a state of which something is missing, unknown, or not what it must be."""
    for name, spec in specs.items():
        if name not in entries and not spec.optional:
            raise ValueError(f"loaded state dict has no {name!r} for {label}, which has a state: it is not complete")
    for name, value in entries.items():
        if name not in specs:
            raise ValueError(
                f"loaded state dict has an unknown entry {name!r} for {label}: with these options its state has "
                f"{', '.join(specs)}"
            )
        problem = _problem(name, value, specs[name], param)
        if problem:
            raise ValueError(f"loaded state dict has a {name!r} {problem} for {label}")


def _problem(name: str, value: Any, spec: EntrySpec, param: Tensor) -> str:
    """What is wrong with an entry; nothing: an empty string."""
    if name == "step" and isinstance(value, int | float) and not isinstance(value, bool):
        return "" if 0 <= value < math.inf else f"of value {value}"
    if not isinstance(value, Tensor):
        return f"that is not a tensor but {type(value).__name__}"
    if value.layout is not torch.strided:
        return f"of layout {value.layout}"
    if value.shape != spec.shape and not (name == "step" and value.numel() == 1):
        return f"of shape {tuple(value.shape)}, not {tuple(spec.shape)},"
    if not _fits(value.dtype, spec.dtype) and not (name == "step" and _fits(value.dtype, torch.int64)):
        return f"of dtype {value.dtype}, not {spec.dtype},"
    if not has_values(value):
        return "that has no data" if has_values(param) else ""
    local = value.to_local() if is_dtensor(value) else value
    if not torch.isfinite(local).all():
        return "that is not finite"
    if spec.counts and (local < 0).any():
        return "that is negative"
    return ""


def _fits(dtype: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether nothing but precision is lost: integers are integers, and what is complex is not made real."""
    if not (wanted.is_floating_point or wanted.is_complex):
        return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    return dtype.is_floating_point or (dtype.is_complex and wanted.is_complex)


def _as_state(value: Any, spec: EntrySpec, param: Tensor, group: Mapping[str, Any]) -> Tensor:
    """A copy of a loaded value on the device of its state, in the layout and precision that is kept in."""
    device = spec.device or param.device
    if not isinstance(value, Tensor):
        return torch.tensor(float(value), dtype=spec.dtype, device=device)
    if is_dtensor(param):
        placed = place(value.to(device=device, dtype=spec.dtype), param, group)
        return placed.clone() if placed is value else placed
    value = value.detach().reshape(spec.shape)
    if spec.shape != param.shape:
        return torch.empty(spec.shape, dtype=spec.dtype, device=device).copy_(value)
    if group["algorithm"] in ordinary.DEFAULTS:
        copied: Tensor = value.to(device=device, dtype=spec.dtype, copy=True)
        return copied
    return empty_entries(param, group, spec.dtype).copy_(value)
