"""Where to cut: placements that cost the orthoptimizers the least."""

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.torch_dtensor import shard
from orthoptim.views import Side, View, ViewLike

if TYPE_CHECKING:
    from torch.distributed.tensor import Shard


def long_dim_placement(
    param: Tensor, *, view: ViewLike = "matrix", side: Side = "auto", world_size: int | None = None
) -> "Shard | None":
    """The placement with the least communication, for ``fully_shard(..., shard_placement_fn=long_dim_placement)``.

    Batches of at least ``world_size`` matrices are split between them, so that every matrix is whole on some rank; else
    the long side of the matrices is cut. FSDP2 cuts a dim other than the first only into equal parts: where it cannot,
    and for what is no matrix, the answer is None, FSDP2's own choice (the first dim).

    Args:
        param: a parameter, not yet sharded.
        view: how the orthoptimizer will see it; for other views than "matrix" use ``functools.partial``.
        side: its orthonormal side.
        world_size: into how many parts it will be cut; by default the number of all ranks.

    Example:
        >>> import torch
        >>> [long_dim_placement(torch.empty(shape), world_size=4) for shape in [(64, 512), (512, 64), (8, 3, 3)]]
        [Shard(dim=1), Shard(dim=0), Shard(dim=0)]
        >>> long_dim_placement(torch.empty(64, 511), world_size=4) is None
        True
    """
    seen = View.of(view)
    if param.ndim < 2 or (seen.name == "kernels" and param.ndim < 3):
        return None
    world = dist.get_world_size() if world_size is None else world_size
    part, *others = seen.parts(param.shape, side)
    leading = seen.leading_dims(param.ndim)
    if leading and part.batch.numel() > 1 and part.batch[0] >= world:
        return shard(0)
    if part.blocks is not None and not others and part.blocks.count % world == 0:  # blocks of one size
        return shard(part.blocks.dim)
    rows, *columns = seen.matrix_dims(param.ndim)
    dim = rows if part.transposed else columns[0]
    return shard(dim) if dim == 0 or param.shape[dim] % world == 0 else None
