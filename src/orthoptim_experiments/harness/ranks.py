"""The processes that train one model together. A single process is a group of one: it calls no collective.

Every rank runs the same program on its part of each batch. Sums over all ranks have the same bits on each rank, so
parameters, learning rates and the end of the training are the same on all. What differs between ranks (the results on
the disk, the time, a signal) is decided by the first rank, or by the largest value.
"""

import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from orthoptim.tensors import is_dtensor

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
    """The number of processes."""
    return dist.get_world_size() if _joined() else 1


def rank() -> int:
    """The index of this process; the first is 0."""
    return dist.get_rank() if _joined() else 0


def is_first() -> bool:
    """Whether this is the rank that writes results and prints progress."""
    return rank() == 0


def local_slice(count: int) -> slice:
    """The part of ``count`` items that this rank processes: consecutive, and of equal size on all ranks, up to one.

    Example:
        >>> list(range(5))[local_slice(5)]
        [0, 1, 2, 3, 4]
    """
    return slice(count * rank() // world_size(), count * (rank() + 1) // world_size())


def local_batches(count: int, size: int) -> Iterator[slice]:
    """This rank's part of ``count`` items in batches of at most ``size``; all ranks get as many, perhaps empty ones.

    Example:
        >>> list(local_batches(5, 2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    local = local_slice(count)
    for begin in range(local.start, local.start + -(-count // world_size()), size):
        yield slice(min(begin, local.stop), min(begin + size, local.stop))


def broadcast_from_first(value: T) -> T:
    """The value of the first rank, on all ranks."""
    if world_size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values[0]


def all_reduce_max(*values: int) -> tuple[int, ...]:
    """The largest of each value over all ranks."""
    if world_size() == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tuple(tensor.tolist())


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """The sum over all ranks, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def sum_gradients(params: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
    """Replace gradients and loss of this rank's part of a batch by those of the whole batch.

    One all-reduce of a flat buffer serves all parameters. A parameter without a gradient must have none on any rank.
    FSDP has summed the gradients of sharded parameters already.

    Args:
        params: with their gradients, which are replaced.
        loss: a sum over the rank's examples, or its share of the mean over all.

    Returns:
        The loss of the whole batch.
    """
    if world_size() == 1:
        return loss
    grads = [_real(param.grad) for param in params if param.grad is not None and not is_dtensor(param.grad)]
    flat = torch.cat([loss.detach().reshape(1), *(grad.reshape(-1) for grad in grads)])
    batch_loss, *summed = torch.split(all_reduce_sum(flat), [1, *(grad.numel() for grad in grads)])
    for grad, values in zip(grads, summed, strict=True):
        grad.copy_(values.view(grad.shape))
    return batch_loss[0]


def broadcast_parameters(module: nn.Module) -> None:
    """Give all ranks the parameters and buffers of the first.

    All ranks draw them from the same seed, but other processors may round differently.
    """
    if world_size() > 1:
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(_real(tensor), src=0)


def all_equal(text: str) -> bool:
    """Whether all ranks pass the same text."""
    if world_size() == 1:
        return True
    texts: list[str | None] = [None] * world_size()
    dist.all_gather_object(texts, text)
    return len(set(texts)) == 1


def confirm_failure(error: Exception, patience: timedelta = PATIENCE) -> None:
    """Return if all ranks have failed: then it is the trial that fails.

    A rank that fails alone has lost the others, or they will lose it: the group goes no further.

    Args:
        error: how this rank failed.
        patience: how long to wait for the others.

    Raises:
        LostError: if not all have failed.
    """
    if world_size() == 1:
        return
    try:
        dist.monitored_barrier(_failures, patience)
    except RuntimeError:
        raise LostError(f"{type(error).__name__}: {error}") from error


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _real(tensor: Tensor) -> Tensor:
    """The same memory, with real and imaginary parts."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
