"""Many small tensors to one and back, on CUDA and ROCm devices: one launch each, however many there are.

``cat`` takes 128 tensors per launch and a foreach copy 64. These kernels read the addresses from a table on the device.
It is filled by kernels whose arguments hold the addresses, as a copy from the host would wait for the device, and kept:
parameters stay where they are, and the allocator mostly gives gradients the memory that they had before.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orthoptim import pointwise
from orthoptim.tensors import has_values

FROM = 65
"""The least number of tensors: of fewer, torch's own copies take one launch."""

_BLOCK = 1024
_KEPT = 64
_tables: dict[tuple[Any, ...], Tensor] = {}

_library: Any = torch.library.Library("orthoptim", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("gather(Tensor table, Tensor(a!) out) -> ()")
_library.define("scatter(Tensor table, Tensor values) -> ()")


def _launch(name: str, table: Tensor, values: Tensor) -> None:
    kernel = getattr(importlib.import_module("orthoptim.engine.kernels.device.moves"), name)
    words = values.reshape(-1).view(torch.int32)
    size = words.numel() // table.numel()
    kernel[(table.numel(), -(-size // _BLOCK))](table, words, size, BLOCK=_BLOCK)


for _name in ("gather", "scatter"):
    _library.impl(_name, lambda table, values, name=_name: _launch(name, table, values), "CompositeExplicitAutograd")
    torch.library.register_fake(f"orthoptim::{_name}", lambda table, values: None, lib=_library)


def gathered(tensors: Sequence[Tensor]) -> Tensor | None:
    """Tensors of one shape as (k, ...) in one launch; None: that is left to torch."""
    if not _serves(tensors):
        return None
    first = tensors[0]
    out = torch.empty((len(tensors), *first.shape), dtype=first.dtype, device=first.device)
    torch.ops.orthoptim.gather(_table(tensors), out)
    return out


def scatter_(tensors: Sequence[Tensor], values: Tensor) -> bool:
    """Write values (k, ...) to tensors of one shape in one launch; False: that is left to torch."""
    if torch.compiler.is_compiling() or values.dtype != tensors[0].dtype or values.is_conj() or not _serves(tensors):
        return False
    torch.ops.orthoptim.scatter(_table(tensors), values.contiguous())
    return True


def _serves(tensors: Sequence[Tensor]) -> bool:
    first = tensors[0]
    if len(tensors) < FROM or first.device.type not in pointwise.DEVICES or torch.compiler.is_compiling():
        return False
    return (
        pointwise.has_triton()
        and first.nbytes % 4 == 0
        and first.nbytes > 0
        and all(tensor.is_contiguous() and not tensor.is_conj() for tensor in tensors)
        and {tensor.dtype for tensor in tensors} == {first.dtype}
    )


def _table(tensors: Sequence[Tensor]) -> Tensor:
    """The addresses of tensors, on their device."""
    device = tensors[0].device
    if not has_values(tensors[0]):
        return torch.empty(len(tensors), dtype=torch.int64, device=device)
    addresses = [tensor.data_ptr() for tensor in tensors]
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return _filled(addresses, device)  # a graph must not rely on what others may drop
    key = (device, *addresses)
    table = _tables.pop(key, None)
    if table is None:
        table = _filled(addresses, device)
        if len(_tables) >= _KEPT:
            del _tables[next(iter(_tables))]
    _tables[key] = table  # the last in order is the one used last
    return table


def _filled(addresses: list[int], device: torch.device) -> Tensor:
    table = torch.zeros(len(addresses), dtype=torch.int64, device=device)
    torch._foreach_add_(list(table.unbind()), addresses)
    return table
