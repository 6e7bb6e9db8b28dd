"""The process groups of ranks that hold pieces of the same matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from orthoptim.distributed.layout import Layout, cutting_dims
from orthoptim.views import View

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# Groups that no mesh has are made once, and are gone with the world they are part of.
_world: dist.ProcessGroup | None = None
_made: dict[tuple[int, ...], dist.ProcessGroup] = {}


def process_group(param: DTensor, layout: Layout, view: View) -> dist.ProcessGroup:
    """The group of a parameter whose matrices are cut. All ranks of it must call."""
    global _world
    cutting = cutting_dims(param, view)
    if len(cutting) == 1:
        return param.device_mesh.get_group(cutting[0])
    world = dist.group.WORLD
    assert world is not None
    if _world is not world:
        _made.clear()
        _world = world
    if layout.ranks == tuple(dist.get_process_group_ranks(world)):
        return world
    if layout.ranks not in _made:
        group = dist.new_group(list(layout.ranks), use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup)
        _made[layout.ranks] = group
    return _made[layout.ranks]
