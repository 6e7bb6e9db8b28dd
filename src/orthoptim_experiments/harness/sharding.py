"""Models of which every rank holds its part of each parameter (FSDP2), and their state as one process would have it.

A checkpoint is the whole state, gathered, in one file: the form it has for one process and for replicas. So it is
written whole or not at all like every other file here, and no folder of torch.distributed.checkpoint can be left
half-written by a rank that is killed. It has to fit into the memory of one process, as these models do.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from orthoptim_experiments.harness import ranks


def shard(model: nn.Module, blocks: Iterable[nn.Module] = (), methods: Iterable[str] = ()) -> None:
    """Split all parameters among the ranks. They must be the same on all, see :func:`ranks.broadcast_parameters`.

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
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum that scales
    for name in methods:
        register_fsdp_forward_method(model, name)


def full_state(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """The whole state of a model and its optimizers, gathered on every rank: collective if the model is sharded."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True)
    return {
        "model": get_model_state_dict(model, options=options),
        "optimizers": [
            # for an optimizer without a state torch would make one, and count a step
            get_optimizer_state_dict(model, optimizer, options=options) if optimizer.state else {}
            for optimizer in optimizers
        ],
    }


def load_full_state(model: nn.Module, optimizers: Sequence[Optimizer], state: Mapping[str, Any]) -> None:
    """Load what :func:`full_state` returned: every rank has all of it, and keeps its part."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict

    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        if saved:
            tensors = [value for entry in saved["state"].values() for value in entry.values() if torch.is_tensor(value)]
            # torch refuses to split a state of numbers alone, of which there is nothing to split
            options = StateDictOptions(full_state_dict=any(tensor.dim() for tensor in tensors))
            set_optimizer_state_dict(model, optimizer, saved, options=options)
    # the parameters last: torch makes the state of a new optimizer by a step, which moves orthogonal ones by a rounding
    set_model_state_dict(model, state["model"], options=StateDictOptions(full_state_dict=True))
