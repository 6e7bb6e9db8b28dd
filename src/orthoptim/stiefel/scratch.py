"""Memory to work in that is kept from one step to the next.

The C library gives large blocks back to the system as soon as they are free, and fresh pages cost more than the
arithmetic of tiny matrices: without this their step takes 1.7 times as long. Devices have allocators of their own that
keep memory.
"""

import threading

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_kept = threading.local()


def scratch(name: str, like: Tensor, *shape: int) -> Tensor:
    """A tensor of a shape, of the dtype and device of another, to be written to; the next one of this name ends it."""
    if like.device.type != "cpu" or isinstance(like, FakeTensor) or torch.compiler.is_compiling():
        return like.new_empty(shape)
    size = torch.Size(shape).numel()
    key = f"{name} {like.dtype}"
    memory: Tensor | None = getattr(_kept, key, None)
    if memory is None or memory.numel() < size:
        with torch.inference_mode(False):  # what is made inside may not be written to outside
            memory = torch.empty(size, dtype=like.dtype)
        setattr(_kept, key, memory)
    return memory[:size].view(shape)


def forget() -> None:
    """Free what this thread keeps."""
    vars(_kept).clear()
