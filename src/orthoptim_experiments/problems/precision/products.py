"""Products of matrices in 16 bits, stored in 32: the faster and coarser arithmetic of GPUs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_FACTORS = {  # where the factors stand among the arguments
    torch.ops.aten.mm: slice(0, 2),
    torch.ops.aten.bmm: slice(0, 2),
    torch.ops.aten.addmm: slice(1, 3),
    torch.ops.aten.baddbmm: slice(1, 3),
}


def half_products(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which float32 products take bfloat16 factors: by the hardware of a GPU, else emulated, slowly.

    Example:
        >>> x = torch.full((1, 1), 1.001)
        >>> with half_products(torch.device("cpu")):
        ...     y = x @ torch.eye(1)
        >>> y.item(), y.dtype
        (1.0, torch.float32)
    """
    return _hardware() if device.type == "cuda" else _Rounded()  # type: ignore[no-untyped-call]


@contextmanager
def _hardware() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Rounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds the factors and multiplies in float32, which is what such hardware does: it accumulates in float32."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        where = _FACTORS.get(func.overloadpacket)
        if where is not None:
            args = list(args)
            args[where] = [_round(factor) for factor in args[where]]
        return func(*args, **(kwargs or {}))


def _round(factor: Tensor) -> Tensor:
    return factor.bfloat16().float() if factor.dtype == torch.float32 else factor
