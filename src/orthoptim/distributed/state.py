"""The state of a parameter that is a DTensor: placed as the parameter is, so that checkpoints can be moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from orthoptim.base import Kind, per_matrix, state_dtype
from orthoptim.distributed.placements import batch_placements, distribute, from_local, local_batch
from orthoptim.engine.state import create, lay_together
from orthoptim.tensors import compute_dtype, is_dtensor
from orthoptim.views import View

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@torch.no_grad()
def init_state(param: Tensor, kinds: Mapping[str, Kind], group: Mapping[str, Any], state: dict[str, Tensor]) -> None:
    """Create what is missing in the state of a constrained parameter.

    Buffers of a DTensor with a value for each entry are placed as the parameter; those with one for each matrix as its
    batch, and are plain tensors, the same on all ranks, where that is not split.
    """
    if not is_dtensor(param):
        create(param, state, group, kinds)
        return
    dtype = compute_dtype(param.dtype)
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
    if dtype != param.dtype and "master" not in state:
        state["master"] = param.detach().to(dtype)
    local = local_batch(param, View.of(group["view"]))
    for name, kind in kinds.items():
        if name in state:
            continue
        if per_matrix(kind):
            values = torch.zeros(local, dtype=state_dtype(kind, dtype), device=param.device)
            state[name] = as_matrix_values(values, param, group)
        else:
            state[name] = torch.zeros_like(param, dtype=state_dtype(kind, dtype), requires_grad=False)


def lay_states_together(group: Mapping[str, Any], states: Mapping[Tensor, dict[str, Tensor]]) -> None:
    """Move what is like in the states of a param group side by side: see :func:`lay_together`.

    Of DTensors that is the numbers of each matrix, in the order of the buckets, which are of one shape each.
    """
    params = [param for param in group["params"] if param in states]
    sharded = sorted(filter(is_dtensor, params), key=lambda param: param.shape)
    for alike in ([param for param in params if not is_dtensor(param)], sharded):
        lay_together([states[param] for param in alike], group["block_cap_mb"])


def as_matrix_values(local: Tensor, param: DTensor, group: Mapping[str, Any]) -> Tensor:
    """Values of the matrices of which this rank holds pieces, as a tensor of all."""
    view = View.of(group["view"])
    placements = batch_placements(param, view)
    if all(placement.is_replicate() for placement in placements):
        return local
    batch = view.batch_shape(param.shape)
    stride = torch.empty(batch, device="meta").stride()
    return from_local(local, param.device_mesh, placements, shape=batch, stride=stride)


def place(value: Tensor, param: DTensor, group: Mapping[str, Any]) -> Tensor:
    """A loaded tensor, plain or placed in some way, placed as the state of the parameter is.

    No rank sends anything if it is plain: it is then the same on all of them.
    """
    if value.ndim == 0:
        return value.full_tensor() if is_dtensor(value) else value
    same = value.shape == param.shape
    placements = list(param.placements) if same else batch_placements(param, View.of(group["view"]))
    if is_dtensor(value):
        if value.device_mesh == param.device_mesh and value.placements == tuple(placements):
            return value
        value = value.full_tensor()
    if all(placement.is_replicate() for placement in placements) and value.shape != param.shape:
        return value
    return distribute(value, param.device_mesh, placements)
