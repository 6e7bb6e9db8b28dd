"""Counts what the operations of a step would do on a CUDA device: launches, copies, waits, bytes and FLOPs.

An operation is one launch, but for these rules of torch's own kernels (2.13):

- views and allocations launch nothing;
- ``baddbmm`` and ``addmm`` copy their first argument to the result first, unless it is the result; a factor that BLAS
  cannot read (gaps in both dims, or a conjugate that is not a transpose) is copied before;
- foreach operations take 110, 64, 48 or 36 tensors per launch when they involve 1, 2, 3 or 4 lists, and 320 chunks of
  65536 entries; where strides or dtypes differ they fall to one launch per tensor;
- ``cat`` takes 128 tensors per launch, 64 where one is not contiguous;
- ``where`` copies a 0-d tensor of the host to the device; ``nonzero`` and ``item`` wait for the device;
- decompositions launch many kernels; ``eigh`` and ``svd`` ask the device whether they succeeded, and wait for it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orthoptim.engine.kernels import observe_launches

What = Literal["kernel", "gemm", "decomposition", "view", "host", "h2d", "d2h", "sync"]

_NO_LAUNCH = {
    "_conj",
    "_neg_view",
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "chunk",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "is_same_size",
    "lift_fresh",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
    "split",
    "split_with_sizes",
    "sym_numel",
    "sym_size",
    "sym_stride",
    "unbind",
    "view_as_complex",
    "view_as_real",
}
_FACTORS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addmm_": (1, 2), "baddbmm_": (1, 2)}
_WRITES_ONLY = {"zero_", "fill_", "copy_", "_foreach_copy_", "_foreach_zero_"}
_WAITS = {"_local_scalar_dense", "item", "is_nonzero", "equal"}
_DECOMPOSITIONS = {"linalg_qr", "_linalg_svd", "_linalg_eigh", "linalg_cholesky_ex", "linalg_solve_triangular"}
_SORTS = {"sort", "argsort", "topk"}
_TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36}
_CHUNK, _CHUNKS_PER_LAUNCH = 65536, 320


@dataclass(frozen=True)
class Operation:
    """One call into torch.

    Attributes:
        name: of the operation.
        what: what it is to the device.
        launches: kernels that it launches.
        read: bytes that it reads.
        written: bytes that it writes.
        flops: those of products.
        shape: of a product (batch, rows, columns, inner), else of the first result.
        dtype: that of the first result.
    """

    name: str
    what: What
    launches: int = 0
    read: int = 0
    written: int = 0
    flops: int = 0
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Totals:
    """Sums over the operations of a step.

    Attributes:
        calls: operations that launch something, which is what the host pays for.
        launches: kernels.
        products: calls of BLAS.
        copies: between host and device.
        syncs: waits of the host for the device.
        gigabytes: read and written by kernels.
        gigaflops: of products.
    """

    calls: int
    launches: int
    products: int
    copies: int
    syncs: int
    gigabytes: float
    gigaflops: float


class LaunchCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations inside of the context, on fake CUDA tensors.

    Attributes:
        operations: all calls, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def totals(self) -> Totals:
        """Sums over all operations."""
        launching = [each for each in self.operations if each.what in ("kernel", "gemm", "decomposition")]
        return Totals(
            calls=len(launching),
            launches=sum(each.launches for each in launching),
            products=sum(each.what == "gemm" for each in launching),
            copies=sum(each.what in ("h2d", "d2h") for each in self.operations),
            syncs=sum(each.what == "sync" for each in self.operations),
            gigabytes=sum(each.read + each.written for each in launching) / 1e9,
            gigaflops=sum(each.flops for each in launching) / 1e9,
        )

    def __enter__(self) -> Self:
        """Begin to record: the operations of torch, and the kernels that the library launches itself."""
        self._kernels = observe_launches(self._observe)
        self._kernels.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """End it."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._kernels.__exit__(*error)

    def _observe(self, name: str, grid: tuple[int, ...], moved: int) -> None:
        self.operations.append(Operation(name, "kernel", 1, read=moved, shape=grid))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation, and record it."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        if name in _WAITS:
            return self._wait(name, func, args, kwargs)
        if name == "allclose":
            with self:
                return bool(torch.isclose(*args, **kwargs).all())
        result = func(*args, **kwargs)
        inputs = _tensors((args, {key: value for key, value in kwargs.items() if key != "out"}))
        results = _tensors(result)
        self.operations.extend(_operations(func, name, args, kwargs, inputs, results))
        return result

    def _wait(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        on_host = tensor.device.type == "cpu"
        self.operations.append(Operation(name, "host" if on_host else "sync"))
        if isinstance(tensor, FakeTensor) and not on_host:  # which has no value to look at
            return False if tensor.dtype == torch.bool else 0.0
        return func(*args, **kwargs)


def _operations(
    func: Any, name: str, args: Any, kwargs: Any, inputs: list[Tensor], results: list[Tensor]
) -> Iterable[Operation]:
    devices = {tensor.device.type for tensor in (*inputs, *results)}
    shape = tuple(results[0].shape) if results else ()
    if name in ("_to_copy", "copy_") and len(devices) > 1:
        to_host = inputs[-1].device.type != "cpu"
        yield Operation(name, "d2h" if to_host else "h2d", 1, written=_bytes(results), shape=shape)
        return
    if devices <= {"cpu"}:
        yield Operation(name, "host")
        return
    if name == "where":
        yield from (Operation("where: number to device", "h2d", 1) for each in inputs if each.device.type == "cpu")
    if name == "_linalg_check_errors":
        yield Operation(name, "sync")
        return
    if name in _NO_LAUNCH or _is_view(func):
        yield Operation(name, "view")
        return
    in_place = func._schema.name.endswith("_") and not name.startswith("__")
    written = _tensors(args[0]) if in_place or not results else results
    if func.namespace == "orthoptim":  # our own kernels write into their arguments
        written = [
            *written,
            *(t for t, spec in zip(args, func._schema.arguments, strict=False) if _is_written(spec, t)),
        ]
    read = inputs[len(written) :] if name in _WRITES_ONLY else inputs
    distinct = {id(tensor): tensor for tensor in read}.values()
    operation = Operation(
        name, "kernel", 1, _bytes(distinct), _bytes(written), shape=shape, dtype=written[0].dtype if written else None
    )
    yield _refined(operation, name, args, kwargs, written, in_place)
    if name in ("nonzero", "masked_select", "_linalg_eigh", "_linalg_svd"):
        yield Operation(name, "sync")


def _is_written(spec: Any, value: Any) -> bool:
    return isinstance(value, Tensor) and spec.alias_info is not None and spec.alias_info.is_write


def _refined(
    operation: Operation, name: str, args: Any, kwargs: Any, written: list[Tensor], in_place: bool
) -> Operation:
    """The operation with what the rules of the module say of it."""
    changes = dict(vars(operation))
    if name in _FACTORS:
        a, b = (args[i] for i in _FACTORS[name])
        batch = a.shape[0] if a.ndim == 3 else 1
        changes["what"] = "gemm"
        changes["shape"] = (batch, a.shape[-2], b.shape[-1], a.shape[-1])
        changes["flops"] = 2 * a.numel() * b.shape[-1] * (4 if a.is_complex() else 1)
        copies = [factor for factor in (a, b) if not _is_read_by_blas(factor)]
        if name in ("baddbmm", "addmm") and kwargs.get("out") is not args[0]:
            copies.append(written[0])
        changes["launches"] += len(copies)
        changes["read"] += _bytes(copies)
        changes["written"] += _bytes(copies)
    elif name in ("cat", "stack"):
        parts = list(args[0])
        changes["launches"] = max(1, math.ceil(len(parts) / (128 if all(p.is_contiguous() for p in parts) else 64)))
    elif name.startswith("_foreach") or name.startswith("_fused"):
        changes["launches"] = _foreach_launches(name, args, in_place)
        if name.startswith("_fused"):
            changes["written"] = _bytes(tensor for values in args[:4] for tensor in values)
    elif name in _DECOMPOSITIONS:
        changes["what"] = "decomposition"
        matrices = args[0].numel() // max(1, args[0].shape[-1] * args[0].shape[-2])
        changes["launches"] = 4 + (3 * matrices if name in ("linalg_qr", "_linalg_svd", "_linalg_eigh") else 0)
    elif name in _SORTS:
        changes["launches"] = 4
    elif name in ("gather", "scatter") and len(args) == 2:  # our own, through a table of addresses
        changes["read"] = changes["written"] = _bytes([args[1]])
    return Operation(**changes)


def _foreach_launches(name: str, args: Any, in_place: bool) -> int:
    lists: list[Sequence[Tensor]] = [
        value for value in args if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor)
    ]
    first = lists[0]
    depth = min(4, len(lists) + (0 if in_place else 1))
    alike = all(
        a.stride() == b.stride() and a.shape == b.shape and (a.dtype == b.dtype or name == "_foreach_copy_")
        for others in lists[1:]
        for a, b in zip(first, others, strict=False)
        if b.ndim or not name.startswith("_fused")
    )
    if not alike or not all(map(_is_dense, first)):
        return len(first)
    chunks = sum(math.ceil(tensor.numel() / _CHUNK) for tensor in first)
    return max(1, math.ceil(len(first) / _TENSORS_PER_LAUNCH[depth]), math.ceil(chunks / _CHUNKS_PER_LAUNCH))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes behind tensors; those of an expanded dim once."""
    total = 0
    for tensor in tensors:
        sizes: Sequence[int] = [n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0]
        total += math.prod(sizes) * tensor.itemsize
    return total


def _is_view(func: Any) -> bool:
    if func.is_view:
        return True
    returns = func._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def _is_read_by_blas(a: Tensor) -> bool:
    """Whether a factor is passed on as it is: by rows, or by columns, which alone may be conjugated."""
    rows, columns = a.stride()[-2:]
    by_rows = columns == 1 and rows >= a.shape[-1]
    by_columns = rows == 1 and columns >= a.shape[-2]
    if a.shape[-2] == 1 or a.shape[-1] == 1:  # a vector is both
        return 1 in (rows, columns) or a.numel() == math.prod(a.shape[:-2])
    return by_columns if a.is_conj() else by_rows or by_columns


def _is_dense(a: Tensor) -> bool:
    """Whether the entries fill a stretch of memory, in any order."""
    expected = 1
    for stride, size in sorted((step, n) for n, step in zip(a.shape, a.stride(), strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True
