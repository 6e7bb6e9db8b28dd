"""What a tensor is: its dtype and the one to compute in, a DTensor or not, with values or without."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""What entries may be: dtypes that can be computed in, or cast to one that can without loss."""

_COMPUTE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
HALF_DTYPES = frozenset(_COMPUTE)
"""What parameters may be stored in, but is not computed in."""

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}  # torch.compile does not trace dtype.to_real


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half precision, else the same."""
    return _COMPUTE.get(dtype, dtype)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real part."""
    return _REAL.get(dtype, dtype)


WITHOUT_FLOAT64 = {"mps"}
"""Types of devices that have no numbers of 64 bits but integers."""


def widest_dtype(device: torch.device) -> torch.dtype:
    """Float64, or float32 on a device that has none.

    Example:
        >>> widest_dtype(torch.device("cpu")), widest_dtype(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse entries that are no numbers to compute with.

    Raises:
        ValueError: for integers, and for floats of 8 bits and complex numbers of 32, which have no arithmetic.
    """
    if dtype not in DTYPES:
        known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise ValueError(f"has dtype {dtype}, which cannot be orthonormal: use one of {known}")


def check_values(tensor: Tensor) -> None:
    """Refuse to look at, or to write, matrices that are not there.

    Raises:
        ValueError: for a dtype as in :func:`check_dtype`, and for tensors on the meta device.
    """
    check_dtype(tensor.dtype)
    if tensor.is_meta:
        raise ValueError(
            "is on the meta device and has no values: give it memory first, as by module.to_empty(device=...)"
        )


def is_dtensor(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is a DTensor; there is none before the module of that name has been imported."""
    kind = type(tensor)
    if kind is Tensor or kind is Parameter:
        return False
    if kind.__name__ == "DTensor":  # by far the most frequent of the others
        return True
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def are_dtensors(params: Sequence[Tensor]) -> bool:
    """Whether all parameters are DTensors, told by their types alone."""
    return {each.__name__ for each in set(map(type, params))} == {"DTensor"}


def are_plain(params: Sequence[Tensor]) -> bool:
    """Whether no parameter can be a DTensor, told by their types alone: a thousand take microseconds."""
    return set(map(type, params)) <= {Tensor, Parameter}


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor; of a DTensor, all ranks must ask."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def has_values(tensor: Tensor) -> bool:
    """Whether there is data to look at: not so for meta and fake tensors."""
    if is_dtensor(tensor):
        tensor = tensor.to_local()
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def local_part(tensor: Tensor) -> Tensor:
    """The tensor that this rank holds of a DTensor (``to_local()`` would make a new one), or a plain tensor itself."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)  # faster than to ask for its type
    return local
