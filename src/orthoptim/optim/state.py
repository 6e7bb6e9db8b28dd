"""The state of constrained parameters, and where it lies in memory: so that a block of them need not be gathered.

The states of like small parameters are slices of one tensor, side by side in the order of the parameters: that also
saves a thousand calls to count a thousand steps. That of many tiny matrices has the batch last in memory.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from orthoptim.base import Kind, per_matrix, state_dtype
from orthoptim.optim.checks import has_values
from orthoptim.stiefel.plan import BLOCK_BYTES, TINY, block_size
from orthoptim.views import compute_dtype, matrix_shape


def create(param: Tensor, state: dict[str, Tensor], group: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Add what is missing in the state of a parameter: zeros, and a copy in full precision where it has less."""
    dtype = compute_dtype(param.dtype)
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
    if dtype != param.dtype and "master" not in state:
        state["master"] = entries(param, group, dtype).copy_(param.detach())
    for name, kind in kinds.items():
        if name in state:
            continue
        if per_matrix(kind):
            batch = matrix_shape(param.shape, group["view"], group["side"])[0]
            state[name] = torch.zeros(batch, dtype=state_dtype(kind, dtype), device=param.device)
        else:
            state[name] = entries(param, group, state_dtype(kind, dtype)).zero_()


def entries(param: Tensor, group: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    """Memory for a value of each entry, in the shape of the parameter.

    It is laid out like the parameter; where that is many tiny matrices, with the batch as the last dim in memory, along
    which they are worked on: of the passes over memory that cannot be contiguous that saves two of five.
    """
    batch, p, n, _ = matrix_shape(param.shape, group["view"], group["side"])
    count = batch.numel()
    # of fewer matrices there may be several parameters in a block
    if n <= TINY and 2 * count > block_size(p, n, dtype.itemsize):
        return param.new_empty(p * n, count, dtype=dtype).mT.view(param.shape)
    return torch.empty_like(param, dtype=dtype)


def lay_together(states: Sequence[dict[str, Tensor]]) -> None:
    """Move the like small tensors among these states side by side."""
    alike: dict[tuple[Hashable, ...], list[tuple[dict[str, Tensor], str]]] = {}
    for state in states:
        for name, value in state.items():
            # of a larger one there is but one in a block
            if 2 * value.nbytes <= BLOCK_BYTES and _dense(value):
                kind = (name, value.shape, value.stride(), value.dtype, value.device)
                alike.setdefault(kind, []).append((state, name))
    for members in alike.values():
        if len(members) > 1:
            values = [state[name] for state, name in members]
            room = values[0].new_empty(values[0].numel() * len(values))
            for k, ((state, name), value) in enumerate(zip(members, values, strict=True)):
                state[name] = room.as_strided(value.shape, value.stride(), k * value.numel()).copy_(value)


def together(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors of one shape (...) as a single one (k, ...) where they lie side by side, else as they are."""
    if len(tensors) == 1 or torch.compiler.is_compiling() or not has_values(tensors[0]):
        return tensors
    first, start, size = tensors[0], tensors[0].data_ptr(), tensors[0].nbytes
    if size == 0 or tensors[1].data_ptr() != start + size or not _dense(first):
        return tensors
    stop = start + len(tensors) * size
    storage = first.untyped_storage()
    if stop > storage.data_ptr() + storage.nbytes():  # neighbours by chance
        return tensors
    stride = first.stride()
    if list(map(Tensor.data_ptr, tensors)) != list(range(start, stop, size)):
        return tensors
    if stride and any(t.stride() != stride for t in tensors):
        return tensors
    return [first.as_strided((len(tensors), *first.shape), (first.numel(), *stride))]


def _dense(a: Tensor) -> bool:
    """Whether the entries fill a stretch of memory in the order of rows or, as after ``qr``, of columns."""
    return (a.is_contiguous() or (a.ndim >= 2 and a.mT.is_contiguous())) and not a.is_conj()
