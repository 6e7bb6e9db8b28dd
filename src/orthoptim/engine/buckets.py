"""Buckets: matrices of one shape, dtype and device as batches (B, p, n), however many parameters they came from.

On a CPU a bucket is worked on in blocks that fit the cache. A block is several small parameters of one shape gathered
into one batch, or a whole parameter, or a part of a large one. Tiny matrices are gathered with the batch as the last
dim in memory, so that whatever is done to them runs along it; as each of their hundred small operations has its price,
small parameters of any shape are put together.

On a GPU a block is as large as memory allows, and parameters of any shape are put together: what counts is the number
of launches.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.engine.blocks import Block
from orthoptim.stiefel.batches import TINY, is_gpu
from orthoptim.stiefel.cost_model import BLOCK_CAP_MB, block_size
from orthoptim.tensors import compute_dtype, real_dtype
from orthoptim.views import View, ViewLike


class Bucket(NamedTuple):
    """Matrices of one shape, dtype and device that are whole on this device.

    Attributes:
        p: rows, the shorter side.
        n: columns.
        dtype: what is computed in.
        real_dtype: that of its real part.
        half: whether the parameters are stored in less.
        device: where.
        members: positions in the list of parameters.
        counts: for each member, how many matrices it holds.
        blocks: what is worked on at a time.
        group: index of the param group.
        names: those of the members.
        form: the form of the step.
        kernel: what steps all of it at once, in the place of the blocks.
    """

    p: int
    n: int
    dtype: torch.dtype
    real_dtype: torch.dtype
    half: bool
    device: torch.device
    members: list[int]
    counts: list[int]
    blocks: list[Block]
    group: int = 0
    names: tuple[str, ...] = ()
    form: str = ""
    kernel: Callable[..., None] | None = None

    @property
    def strategy(self) -> str:
        """Nothing travels between ranks."""
        return "local"


def make_buckets(
    params: Sequence[Tensor],
    view: ViewLike,
    side: str,
    states: Sequence[Sequence[Tensor]] = (),
    compile: bool = False,
    cap_mb: float = BLOCK_CAP_MB,
) -> list[Bucket]:
    """Sort parameters into buckets, in the order of their first members, and cut these into blocks.

    Args:
        params: the parameters; where the view divides them, their parts.
        view: how they are seen.
        side: which side is orthonormal.
        states: further tensors of each parameter that are to be written in parts where the parameter is.
        compile: whether a compiler is at work: it fuses the step of tiny matrices into one pass over memory, so these
            are then neither cut nor laid out anew.
        cap_mb: how much of a bucket a block may hold; on a CPU, no more than fits the cache.
    """
    kinds: dict[tuple[torch.Size, torch.dtype, torch.device], list[int]] = {}
    for index, param in enumerate(params):
        kinds.setdefault((param.shape, param.dtype, param.device), []).append(index)
    buckets: dict[tuple[int, int, torch.dtype, torch.device], Bucket] = {}
    for (shape, dtype, device), members in kinds.items():
        batch, p, n, transposed, _, scale = View.of(view).part(shape, side)
        compute = compute_dtype(dtype)
        key = (p, n, dtype, device)
        bucket = buckets.get(key, Bucket(p, n, compute, real_dtype(compute), compute != dtype, device, [], [], []))
        rows, columns = (n, p) if transposed else (p, n)
        size = block_size(p, n, compute.itemsize, device.type, cap_mb)
        tiny = n <= TINY and not is_gpu(device.type)
        fused = compile and (torch.compiler.is_compiling() or not dtype.is_complex)
        whole = (
            batch.numel() <= size
            or (tiny and fused)
            or not all(_divisible(tensors[i], len(batch)) for tensors in (params, *states) for i in members)
        )
        count = len(members) * batch.numel()
        block = Block(members, count, rows, columns, transposed, tiny and not fused, scale=scale)
        buckets[key] = bucket._replace(
            members=bucket.members + members,
            counts=bucket.counts + [batch.numel()] * len(members),
            blocks=bucket.blocks + _cut(block, size, whole),
        )
    return [_put_together(bucket, cap_mb) for bucket in buckets.values()]


def _divisible(a: Tensor, batch_dims: int) -> bool:
    """Whether the matrices, or one value of each, can be written in parts: a batch of one dim is a view of it."""
    if a.is_contiguous():
        return True
    if a.ndim - batch_dims not in (0, 2):  # the sides of a matrix are several dims each
        return False
    return all(a.stride(i) == a.stride(i + 1) * a.shape[i + 1] for i in range(batch_dims - 1))


def _cut(block: Block, size: int, whole: bool) -> list[Block]:
    """Blocks of ``size`` matrices, or of whole parameters."""
    members, count = block.members, block.matrices // len(block.members)
    if whole:
        step = max(1, size // count)
        chosen = [members[i : i + step] for i in range(0, len(members), step)]
        return [block._replace(members=part, matrices=count * len(part)) for part in chosen]
    parts = list(pairwise([*range(0, count, size), count]))
    return [block._replace(members=[m], matrices=part[1] - part[0], part=part) for m in members for part in parts]


def _put_together(bucket: Bucket, cap_mb: float) -> Bucket:
    """The same with small blocks in one whatever the shapes of their parameters: of tiny matrices; on a GPU, of all."""
    gpu = is_gpu(bucket.device.type)
    size = block_size(bucket.p, bucket.n, bucket.dtype.itemsize, bucket.device.type, cap_mb)
    blocks: list[Block] = []
    growing: dict[bool, int] = {}  # which of the blocks may still take others that lie in memory like it
    for block in bucket.blocks:
        small = block.part is None and (gpu or (block.batch_last and 2 * block.matrices <= size))
        at = growing.get(block.transposed)
        if small and at is not None and blocks[at].matrices + block.matrices <= size:
            members, matrices = blocks[at].members + block.members, blocks[at].matrices + block.matrices
            blocks[at] = block._replace(members=members, matrices=matrices, mixed=True)
            continue
        if small:
            growing[block.transposed] = len(blocks)
        blocks.append(block)
    return bucket._replace(blocks=blocks)
