"""The processes that train one model together, in step; one process alone is a group of one, and pays nothing.

Every rank runs the same program on its part of each batch. Sums over all ranks have the same bits on each of them, so
what all compute from them is the same, too: parameters, learning rates, when to stop. What only one can know, such as
the results on the disk or the time of the day, is decided by the first rank or by the largest value.
"""

import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")

PATIENCE = timedelta(seconds=30)
"""How long a rank that has failed waits for the others to fail, too."""

_failures: dist.ProcessGroup | None = None
"""The ranks, with connections for :func:`confirm_failure` alone: no other collective is left half done on them."""


class LostError(Exception):
    """The ranks are no longer in step; all have to begin again from the last checkpoint."""


def join(device: torch.device, **options: Any) -> None:
    """Become one of the ranks, and wait for the others.

    Args:
        device: where they train.
        options: of :func:`torch.distributed.init_process_group`; torchrun's environment has them by default.
    """
    global _failures
    if device.type == "cuda":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", **options)
    _failures = dist.new_group(backend="gloo")


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if _joined() else 1


def rank() -> int:
    """Which of them this is; the first is 0."""
    return dist.get_rank() if _joined() else 0


def is_first() -> bool:
    """Whether this is the rank that writes results and shows how the run goes on."""
    return rank() == 0


def part(count: int) -> slice:
    """Which of so many items are this rank's: consecutive ones, and up to one as many as any other's.

    Example:
        >>> list(range(5))[part(5)]
        [0, 1, 2, 3, 4]
    """
    return slice(count * rank() // world_size(), count * (rank() + 1) // world_size())


def batches(count: int, size: int) -> Iterator[slice]:
    """This rank's part of so many items in batches of at most ``size``; as many on all ranks, the last perhaps empty.

    Example:
        >>> list(batches(5, 2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    own = part(count)
    for begin in range(own.start, own.start + -(-count // world_size()), size):
        yield slice(min(begin, own.stop), min(begin + size, own.stop))


def of_first(value: T) -> T:
    """The first rank's value, a plain one, on all ranks."""
    if world_size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values[0]


def largest(*values: int) -> tuple[int, ...]:
    """Each of the values as it is where it is largest."""
    if world_size() == 1:
        return values
    found = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return tuple(found.tolist())


def total(tensor: Tensor) -> Tensor:
    """The sum over all ranks, in the place of each one's own."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def sum_gradients(params: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
    """Make gradients and loss, each of this rank's part of a batch, those of the whole batch.

    One flat buffer goes over the wire, whatever the number of parameters. A parameter without a gradient must have
    none on any rank. Those of which ranks hold parts have summed their gradients already.

    Args:
        params: with their gradients, which are replaced.
        loss: a sum over the rank's examples, or its share of the mean over all.

    Returns:
        The loss of the whole batch.
    """
    if world_size() == 1:
        return loss
    own = [_real(param.grad) for param in params if param.grad is not None and not is_split(param.grad)]
    flat = torch.cat([loss.detach().reshape(1), *(grad.reshape(-1) for grad in own)])
    whole, *summed = torch.split(total(flat), [1, *(grad.numel() for grad in own)])
    for grad, values in zip(own, summed, strict=True):
        grad.copy_(values.view(grad.shape))
    return whole[0]


def is_split(value: object) -> bool:
    """Whether ranks hold parts of it: a DTensor, told by its mesh, as its class takes long to import."""
    return isinstance(value, Tensor) and hasattr(value, "device_mesh")


def start_alike(module: nn.Module) -> None:
    """Give all ranks the parameters and buffers of the first.

    They are drawn alike from the seed; but processors of another make may round otherwise on the way.
    """
    if world_size() > 1:
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(_real(tensor), src=0)


def agree(text: str) -> bool:
    """Whether all ranks give the same text."""
    if world_size() == 1:
        return True
    texts: list[str | None] = [None] * world_size()
    dist.all_gather_object(texts, text)
    return len(set(texts)) == 1


def confirm_failure(error: Exception) -> None:
    """Return if all ranks have failed: then it is the trial that fails.

    A rank that fails alone has lost the others, or they will lose it: the group goes no further.

    Args:
        error: how this rank failed.

    Raises:
        LostError: if not all have failed.
    """
    if world_size() == 1:
        return
    try:
        dist.monitored_barrier(_failures, PATIENCE)
    except RuntimeError:
        raise LostError(f"{type(error).__name__}: {error}") from error


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _real(tensor: Tensor) -> Tensor:
    """The same memory, with real and imaginary parts."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
