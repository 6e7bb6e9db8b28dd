"""Models of which every rank holds its part of each parameter (FSDP2), and their state as one process would have it.

A checkpoint is the whole state, gathered, in one file: the form it has for one process and for replicas. So it is
written whole or not at all like every other file here, and no folder of torch.distributed.checkpoint can be left
half-written by a rank that is killed. It has to fit into the memory of one process, as these models do.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from orthoptim_experiments.harness import ranks


def shard(model: nn.Module, blocks: Iterable[nn.Module] = (), methods: Iterable[str] = ()) -> None:
    """Split all parameters among the ranks. They must be the same on all, see :func:`ranks.start_alike`.

    Args:
        model: with parameters of one dtype outside the blocks.
        blocks: its parts that are gathered one at a time; each with parameters of one dtype.
        methods: names of methods of the model, beside ``forward``, that use its parameters.
    """
    from torch.distributed.device_mesh import init_device_mesh  # half a second of imports
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (ranks.world_size(),))
    for module in (*blocks, model):
        # resharded always: between calls parameters are what the optimizer holds
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # losses are shares of one loss: their gradients add up to its own
    for name in methods:
        register_fsdp_forward_method(model, name)


def whole(value: Any) -> Any:
    """A state with every tensor of which ranks hold parts put together; all ranks have to ask for it."""
    if ranks.is_split(value):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(item) for item in value)
    return value


def load_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load what :func:`whole` made of the model's state."""
    own = model.state_dict()
    model.load_state_dict({name: _split(tensor, own[name]) for name, tensor in state.items()})


def split_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer's state, of which :func:`whole` was made, with this rank's part of each tensor.

    A tensor is split as the one in its place, or like the parameter if there is none yet and it has its shape.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]

    def split(param: Tensor, name: str, saved: Any) -> Any:
        own = optimizer.state.get(param, {}).get(name)
        if own is None and isinstance(saved, Tensor) and saved.shape == param.shape:
            own = param
        return _split(saved, own)

    entries = {
        index: {name: split(params[index], name, saved) for name, saved in entry.items()}
        for index, entry in state["state"].items()
    }
    return {**state, "state": entries}


def _split(saved: Any, like: Any) -> Any:
    if not ranks.is_split(like) or ranks.is_split(saved):
        return saved
    from torch.distributed.tensor import distribute_tensor

    # every rank has read the whole: none needs to be told
    return distribute_tensor(saved.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
