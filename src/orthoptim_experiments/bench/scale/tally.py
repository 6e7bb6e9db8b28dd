"""Counts what a rank sends, allocates and multiplies, in a TorchDispatchMode."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

Bytes = tuple[float, float]
"""Sent and received by this rank."""


class Tally(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts the operations of one rank.

    Bytes are those of the usual ring algorithms: what a rank keeps for itself is not counted, and an all-reduce sends
    its buffer twice.

    Attributes:
        collectives: how many, by name.
        sent: bytes.
        received: bytes.
        peak: the most bytes that were held at a time, of what was allocated inside.
        flops: of matrix products.
        operations: of torch, views and all: each costs the host microseconds, and the device a kernel, or nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.collectives: Counter[str] = Counter()
        self.sent = self.received = 0.0
        self.peak = 0
        self.flops = self.operations = 0
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor dispatches to operations on local tensors, which are counted
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count_collective(func, args)
        elif func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        if allocates(func):
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, Tensor):
                    self._hold(tensor)
        return out

    def _count_collective(self, func: Any, args: tuple[Any, ...]) -> None:
        name = func.overloadpacket.__name__
        if name in _SILENT:
            return
        if name not in _WIRE:
            raise NotImplementedError(f"the bytes of {func} are not known")
        title, wire = _WIRE[name]
        self.collectives[title] += 1
        sent, received = wire(*args)
        self.sent += sent
        self.received += received

    @property
    def held(self) -> int:
        """Bytes that are held now: storages that are gone, or were given back by ``resize_(0)``, count nothing."""
        present = [storage for each in self._storages.values() if (storage := each()) is not None]
        return sum(storage.nbytes() for storage in present)

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._storages:
            self._storages[key] = weakref.ref(storage, lambda _: self._storages.pop(key, None))
            self.peak = max(self.peak, self.held)


@cache
def allocates(func: Any) -> bool:
    """Whether an operation returns new memory, not a view or what it was given."""
    if func.namespace in ("c10d", "_c10d_functional"):
        return bool(func.overloadpacket.__name__ == "all_gather_into_tensor")
    return all(value.alias_info is None for value in func._schema.returns)


def _all_reduce(tensors: list[Tensor], group: Any, *_: Any) -> Bytes:
    size = _group(group).size()
    bytes_ = 2 * (size - 1) / size * sum(tensor.nbytes for tensor in tensors)
    return bytes_, bytes_


def _all_to_all(output: Tensor, tensor: Tensor, group: Any, coming: list[int], going: list[int], *_: Any) -> Bytes:
    rank = _group(group).rank()
    return (sum(going) - going[rank]) * tensor.itemsize, (sum(coming) - coming[rank]) * output.itemsize


def _all_gather(tensor: Tensor, size: int, *_: Any) -> Bytes:
    return (size - 1) * tensor.nbytes, (size - 1) * tensor.nbytes


def _gather(outputs: list[list[Tensor]], tensors: list[Tensor], group: Any, root: int, *_: Any) -> Bytes:
    if _group(group).rank() != root:
        return tensors[0].nbytes, 0
    return 0, sum(tensor.nbytes for tensor in outputs[0]) - tensors[0].nbytes


def _scatter(outputs: list[Tensor], tensors: list[list[Tensor]], group: Any, root: int, *_: Any) -> Bytes:
    sent, received = _gather(tensors, outputs, group, root)
    return received, sent


_WIRE: dict[str, tuple[str, Callable[..., Bytes]]] = {
    "allreduce_": ("all-reduce", _all_reduce),
    "alltoall_base_": ("all-to-all", _all_to_all),
    "all_gather_into_tensor": ("all-gather", _all_gather),
    "gather_": ("gather", _gather),
    "scatter_": ("scatter", _scatter),
}
_SILENT = {"wait_tensor", "_wrap_tensor_autograd"}


def _group(boxed: Any) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.ProcessGroup.unbox(boxed)
    return group


def nbytes(tensors: Iterator[Tensor]) -> int:
    """The bytes of the local parts of tensors."""
    return sum((tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes for tensor in tensors)
