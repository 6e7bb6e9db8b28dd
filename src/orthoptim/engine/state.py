"""The state of constrained parameters, and where it lies in memory: so that a block of them need not be gathered.

The states of like small parameters are slices of one tensor, side by side in the order of the parameters: that also
saves a thousand calls to count a thousand steps. That of many tiny matrices has the batch last in memory.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.base import Kind, per_matrix, state_dtype
from orthoptim.engine.buckets import is_dense
from orthoptim.engine.rule import UpdateRule
from orthoptim.stiefel.batches import TINY, is_gpu
from orthoptim.stiefel.cost_model import BLOCK_BYTES, BLOCK_CAP_MB, block_size
from orthoptim.tensors import HALF_DTYPES, compute_dtype, has_values, is_dtensor
from orthoptim.views import View


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
            state[name] = empty_entries(param, group, spec.dtype).copy_(param.detach())
        else:
            state[name] = empty_entries(param, group, spec.dtype).zero_()


def init_states(rule: UpdateRule, params: list[Tensor], states: list[dict[str, Tensor]]) -> list[Tensor]:
    """The states of plain parameters as one list, the tensors of one parameter after those of another.

    What is missing is created, and new states of like parameters lie side by side.

    Args:
        rule: how their group is updated.
        params: the parameters.
        states: their states.
    """
    needed = {name for name in rule.state_names if name != "master"}
    half = {param.dtype for param in params} & HALF_DTYPES
    new = []
    for param, state in zip(params, states, strict=True):
        if not needed <= state.keys() or (half and param.dtype in half and "master" not in state):
            create(param, state, rule.group, rule.kinds)
            new.append(state)
    if new:
        lay_together(new, rule.group["block_cap_mb"])
    # a parameter that needs no master copy is its own
    pairs = zip(params, states, strict=True)
    return [state.get(name, param) for param, state in pairs for name in rule.state_names]


def empty_entries(param: Tensor, group: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
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
    if (
        n <= TINY
        and not is_gpu(param.device.type)
        and 2 * count > block_size(p, n, dtype.itemsize, cap_mb=group["block_cap_mb"])
    ):
        return param.new_empty(p * n, count, dtype=dtype).mT.view(param.shape)
    return torch.empty_like(param, dtype=dtype)


def newest(x: Tensor, master: Tensor) -> Tensor:
    """The master copy of a half-precision parameter; its own value in the entries that somebody has written to since.

    Entry by entry: so the rule is the same where a rank holds a piece of a matrix.
    """
    return torch.where(master.to(x.dtype) == x, master, x.to(master.dtype))


def rescaled(new: Tensor, param: Tensor, scale: float) -> Tensor:
    """What a parameter with XXᴴ = σ²I becomes: σ times the new matrices; entries that have not changed as they are."""
    return new if scale == 1 else torch.where(new == param / scale, param, new * scale)


def lay_together(states: Sequence[dict[str, Tensor]], cap_mb: float = BLOCK_CAP_MB) -> None:
    """Move the like small tensors among these states side by side.

    On a GPU, where a block holds parameters of several shapes, so do those of several shapes, one shape after another.

    Args:
        states: of like parameters, in their order.
        cap_mb: how much a block may hold.
    """
    alike: dict[tuple[Hashable, ...], list[tuple[dict[str, Tensor], str]]] = {}
    for state in states:
        for name, value in state.items():
            # of a larger one there is but one in a block
            if is_dtensor(value):  # checkpoints want storage of its own for each
                continue
            if 2 * value.nbytes <= _block_bytes(value, cap_mb) and is_dense(value):
                like = (name, value.dtype, value.device, value.shape, value.stride())
                alike.setdefault(like, []).append((state, name))
    neighbours: dict[tuple[Hashable, ...], list[tuple[dict[str, Tensor], str]]] = {}
    for kind, members in alike.items():
        state, name = members[0]
        neighbours.setdefault(kind[:3] if is_gpu(state[name].device.type) else kind, []).extend(members)
    for members in neighbours.values():
        state, name = members[0]
        most, start, size = _block_bytes(state[name], cap_mb), 0, 0
        for stop, (state, name) in enumerate(members):
            if size and size + state[name].nbytes > most and is_gpu(state[name].device.type):
                _move_to_one_tensor(members[start:stop])
                start, size = stop, 0
            size += state[name].nbytes
        _move_to_one_tensor(members[start:])


def _block_bytes(value: Tensor, cap_mb: float) -> float:
    return cap_mb * 2**20 if is_gpu(value.device.type) else min(BLOCK_BYTES, cap_mb * 2**20)


def _move_to_one_tensor(members: list[tuple[dict[str, Tensor], str]]) -> None:
    if len(members) < 2:
        return
    values = [state[name] for state, name in members]
    flat = values[0].new_empty(sum(value.numel() for value in values))
    start = 0
    for (state, name), value in zip(members, values, strict=True):
        state[name] = flat.as_strided(value.shape, value.stride(), start).copy_(value)
        start += value.numel()


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


_LARGEST = 31 << 20
"""Bytes: glibc's dynamic mmap threshold ignores blocks of 32 MB and more."""


def keep_freed_memory() -> None:
    """Have the C library keep what is freed, up to 64 MB, instead of giving it back to the system.

    glibc keeps free memory up to twice the size of the largest block that it has ever got back, at first 128 kB. A
    process that frees tensors of 30 MB, as most trainings do, keeps enough. In any other, every step would have the
    system map and clear the pages of all its temporaries again; measured: five to fourteen thousand of them, for which
    784 matrices of 10×256 take 1.6 times as long, 218 624 of 3×3 1.4 times, a thousand of 64×64 1.2 times. So one such
    block is allocated and freed, of which no page is ever touched. Other allocators do not mind.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")
