"""The processes that train one model together, in step; one process alone is a group of one, and pays nothing.

Every rank runs the same program on its part of each batch. Sums over all ranks have the same bits on each of them, so
what all compute from them is the same, too: parameters, learning rates, when to stop. What only one can know, such as
the results on the disk or the time of the day, is decided by the first rank or by the largest value.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store

from orthoptim_experiments.harness.waiting import wait_until

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a rank which failed waits for the others to fail, too."""

_board: Store | None = None
"""Where ranks leave notes for each other when their group may be broken. It is not theirs: it outlives each of them."""


class LostError(Exception):
    """The ranks are no longer in step; all have to begin again from the last checkpoint."""


def join(store: Store, rank: int, world_size: int, device: torch.device) -> None:
    """Become one of the ranks, and wait for the others.

    Args:
        store: where they meet; fresh for every attempt, or the addresses of dead processes would be found in it.
        rank: of this process.
        world_size: how many there are.
        device: where they train.
    """
    global _board
    _board = PrefixStore("board", store)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=world_size)


def leave() -> None:
    """Be alone again."""
    global _board
    _board = None
    dist.destroy_process_group()


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


def end_all() -> None:
    """Let the others know that this rank has ended the run, and will answer no more."""
    if _board is not None:
        _board.set("ended", "")


def confirm_failure(trial: str, error: Exception, hurry: Callable[[], bool]) -> None:
    """Return if all ranks have failed in the same trial: then it is the trial that fails.

    A rank that fails alone has lost the others, or they will lose it: the group goes no further.

    Args:
        trial: which one, in words that no other has.
        error: how this rank failed.
        hurry: whether to give the others up at once, as somebody wants this process to end.

    Raises:
        LostError: if not all have.
    """
    board = _board
    if board is None:
        return
    try:
        board.set(f"{trial}: {rank()}", "failed")
        notes = [f"{trial}: {each}" for each in range(world_size())]
        everybody = wait_until(lambda: board.check(notes), PATIENCE, lambda: hurry() or board.check(["ended"]))
    except RuntimeError:  # nobody to keep the board any more
        everybody = False
    if not everybody:
        raise LostError(f"{type(error).__name__}: {error}") from error


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _real(tensor: Tensor) -> Tensor:
    """The same memory, with real and imaginary parts."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
