"""The state of constrained parameters, and where it lies in memory: so that a block of them need not be gathered.

The states of like small parameters are slices of one tensor, side by side in the order of the parameters: that also
saves a thousand calls to count a thousand steps. That of many tiny matrices has the batch last in memory.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.base import Kind, per_matrix, state_dtype
from orthoptim.stiefel.cost_model import BLOCK_BYTES, TINY, block_size
from orthoptim.tensors import compute_dtype, has_values, is_dtensor
from orthoptim.views import View

_ALIGNMENT = 64
"""Bytes: torch allocates so on a CPU."""


class EntrySpec(NamedTuple):
    """What one entry of the state of a parameter is.

    Attributes:
        shape: that of a scalar, of the parameter, or of its batch of matrices.
        dtype: what it is kept in.
        device: where; None: where the parameter is.
        optional: whether a saved state may lack it.
        dropped: whether it is of no use to this parameter.
        counts: whether it is never negative.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device | None = None
    optional: bool = False
    dropped: bool = False
    counts: bool = False


def specify(param: Tensor, group: Mapping[str, Any], kinds: Mapping[str, Kind]) -> dict[str, EntrySpec]:
    """The entries of the state of a constrained parameter, by name.

    Counters other than ``num_updates`` only report what happened and are missing in older checkpoints; they then start
    at zero. A master copy is missing in the checkpoint of a run in full precision, and starts as the parameter.
    """
    dtype = compute_dtype(param.dtype)
    batch = View.of(group["view"]).batch_shape(param.shape)
    specs = {
        "step": EntrySpec(torch.Size(), torch.float32, counts=True),
        "master": EntrySpec(param.shape, dtype, optional=True, dropped=dtype == param.dtype),
    }
    for name, kind in kinds.items():
        counts = kind == "counters"
        optional = counts and name != "num_updates"
        shape = batch if per_matrix(kind) else param.shape
        specs[name] = EntrySpec(shape, state_dtype(kind, dtype), optional=optional, counts=counts)
    return specs


def create(param: Tensor, state: dict[str, Tensor], group: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Add what is missing in the state of a parameter: zeros, and a copy in full precision where it has less."""
    for name, spec in specify(param, group, kinds).items():
        if name in state or spec.dropped:
            continue
        if spec.shape != param.shape:
            state[name] = torch.zeros(spec.shape, dtype=spec.dtype, device=param.device)
        elif name == "master":
            state[name] = entries(param, group, spec.dtype).copy_(param.detach())
        else:
            state[name] = entries(param, group, spec.dtype).zero_()


def entries(param: Tensor, group: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    """Memory for a value of each entry, in the shape of the parameter.

    It is laid out like the parameter; where that is many tiny matrices, with the batch as the last dim in memory, along
    which they are worked on: of the passes over memory that cannot be contiguous that saves two of five.
    """
    view = View.of(group["view"])
    if view.is_divided:  # the batch is not the first dims
        return torch.empty_like(param, dtype=dtype)
    batch, p, n, *_ = view.part(param.shape, group["side"])
    count = batch.numel()
    # of fewer matrices there may be several parameters in a block
    if n <= TINY and 2 * count > block_size(p, n, dtype.itemsize):
        return param.new_empty(p * n, count, dtype=dtype).mT.view(param.shape)
    return torch.empty_like(param, dtype=dtype)


def newest(x: Tensor, master: Tensor) -> Tensor:
    """The master copy of a half-precision parameter; its own value in the entries that somebody has written to since.

    Entry by entry: so the rule is the same where a rank holds a piece of a matrix.
    """
    return torch.where(master.to(x.dtype) == x, master, x.to(master.dtype))


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


def apart(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a tensor of its own for each that is part of a larger one, which a pickle would hold whole."""

    def shares(value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and not is_dtensor(value)
            and has_values(value)
            and value.nbytes < value.untyped_storage().nbytes()
        )

    return {name: value.clone() if shares(value) else value for name, value in state.items()}


def together(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors of one shape (...) as a single one (k, ...) where they lie side by side, else as they are.

    Its strides are those of :func:`stacked`, of which this saves the copy.
    """
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
    flat = first.as_strided((len(tensors) * first.numel(),), (1,))
    if by_columns(first):
        return [flat.view(len(tensors), *first.mT.shape).mT]
    return [flat.view(len(tensors), *first.shape)]


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape (...) as (k, ...), by columns where all of them lie so, else by rows.

    Products of matrices that lie otherwise are rounded otherwise: the strides depend on those of the tensors alone, not
    on whether these are neighbours in memory, which a checkpoint does not tell.
    """
    if not tensors[0].is_contiguous():
        tensors = [without_gaps(each) for each in tensors]
        if all(map(by_columns, tensors)):
            return torch.stack([each.mT for each in tensors]).mT
    return torch.stack(list(tensors)).contiguous()  # a stack of images may be channels-last


def without_gaps(a: Tensor) -> Tensor:
    """The same, or a copy where its place in memory would show in the result of products.

    Gaps between entries do (``deepcopy`` does not keep them), and so does, on a CPU, a start that is not aligned, as of
    slices of one flat tensor: BLAS takes another path there, and rounds otherwise.
    """
    if torch.compiler.is_compiling():
        return a
    dense = a.is_contiguous() or by_columns(a) or torch.empty_like(a, device="meta").stride() == a.stride()
    aligned = a.device.type != "cpu" or not has_values(a) or a.data_ptr() % _ALIGNMENT == 0
    return a if dense and aligned else a.clone()


def by_columns(a: Tensor) -> bool:
    """Whether the entries fill a stretch of memory in the order of columns, as after ``qr``, and not of rows."""
    return a.ndim >= 2 and not a.is_contiguous() and a.mT.is_contiguous()


def _dense(a: Tensor) -> bool:
    """Whether the entries fill a stretch of memory in the order of rows or of columns."""
    return (a.is_contiguous() or by_columns(a)) and not a.is_conj()
