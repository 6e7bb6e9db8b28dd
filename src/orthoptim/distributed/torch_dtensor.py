"""What is made with ``torch.distributed.tensor``, which is imported when it is needed: that takes half a second."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement, Replicate, Shard


def from_local(
    local: Tensor,
    mesh: "DeviceMesh",
    placements: "Sequence[Placement]",
    shape: torch.Size | None = None,
    stride: tuple[int, ...] | None = None,
) -> "DTensor":
    """A DTensor of what each rank holds; no rank sends anything."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def distribute(tensor: Tensor, mesh: "DeviceMesh", placements: "Sequence[Placement]") -> "DTensor":
    """A DTensor of a tensor that is the same on all ranks; no rank sends anything."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def replicate() -> "Replicate":
    """The placement of a tensor that every rank holds."""
    from torch.distributed.tensor import Replicate

    return Replicate()


def shard(dim: int) -> "Shard":
    """The placement of a tensor that is cut along a dim."""
    from torch.distributed.tensor import Shard

    return Shard(dim)
