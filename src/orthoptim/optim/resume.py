"""Loading a state: what is refused, and in which precision and layout it is taken."""

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import StateDict

from orthoptim.distributed.detect import is_dtensor
from orthoptim.optim import checks, ordinary
from orthoptim.optim.state import entries
from orthoptim.views import compute_dtype, matrix_shape, real_dtype

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def check_saved(groups: list[dict[str, Any]], state_dict: StateDict) -> None:
    """Refuse, before anything is changed, a state that does not fit these groups."""
    for index, (group, saved) in enumerate(zip(groups, state_dict["param_groups"], strict=False)):
        found = saved.get("algorithm")
        if found != group["algorithm"]:
            raise ValueError(
                f"loaded state dict has algorithm {found!r} in group {index}, this optimizer has "
                f"{group['algorithm']!r}: it was saved by another optimizer"
            )
        for option in ("view", "side", "base"):
            if saved.get(option) != group.get(option):
                raise ValueError(
                    f"loaded state dict has {option} {saved.get(option)!r} in group {index}, this optimizer has "
                    f"{group.get(option)!r}: build it as it was saved"
                )
        for position, (param, key) in enumerate(zip(group["params"], saved["params"], strict=False)):
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, Tensor) and value.shape not in _state_shapes(param, group):
                    label = checks.parameter_name(group, position, f"group {index}")
                    raise ValueError(f"loaded state dict has a {name!r} of shape {tuple(value.shape)} for {label}")


def restore_state(
    groups: list[dict[str, Any]], state: MutableMapping[Tensor, dict[str, Any]], state_dict: StateDict
) -> None:
    """Take the tensors of ``state_dict`` in place of what torch made of them.

    torch casts every floating state but ``step`` to the dtype of its parameter, and goes on in the very tensors it was
    given; here they are copied, and those of constrained groups keep the precision their state is kept in.
    """
    for group, saved in zip(groups, state_dict["param_groups"], strict=True):
        constrained = group["algorithm"] not in ordinary.DEFAULTS
        for param, key in zip(group["params"], saved["params"], strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, Tensor):
                    loaded = _as_state(value, param, name, group) if constrained else state[param][name]
                    if is_dtensor(param) and not constrained:
                        loaded = _placed(loaded, param, group)
                    state[param][name] = loaded.clone() if loaded is value else loaded


def _placed(value: Tensor, param: "DTensor", group: Mapping[str, Any]) -> Tensor:
    from orthoptim.distributed.state import place

    return place(value, param, group)


def _as_state(value: Tensor, param: Tensor, name: str, group: Mapping[str, Any]) -> Tensor:
    """A loaded tensor on the parameter's device, in its layout, and in the precision its state is kept in."""
    if value.is_floating_point() and name != "step":
        dtype = real_dtype(compute_dtype(param.dtype))
    elif value.is_complex():
        dtype = param.dtype
    else:
        dtype = value.dtype
    if is_dtensor(param):
        return _placed(value.to(device=param.device, dtype=dtype), param, group)
    if value.shape == param.shape:
        return entries(param, group, dtype).copy_(value)
    return value.to(device=param.device, dtype=dtype)


def _state_shapes(param: Tensor, group: Mapping[str, Any]) -> tuple[torch.Size, ...]:
    """The shapes a state tensor may have: that of a scalar, of the parameter, of its batch of matrices."""
    if group["algorithm"] in ordinary.DEFAULTS:
        return torch.Size(), param.shape
    return torch.Size(), param.shape, matrix_shape(param.shape, group["view"], group["side"])[0]
