"""One rank of a fake world: a process group without peers, and DTensors without data."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Parameter

from orthoptim_experiments.bench.scale.models import Case, Shape


@contextmanager
def fake_world(rank: int, size: int) -> Iterator[DeviceMesh]:
    """Be one rank of ``size``, all in one dim of a mesh, as ``fully_shard`` makes it.

    Raises:
        RuntimeError: if this process is part of a world already.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RuntimeError("this process is part of a process group already: study scale in another one")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield DeviceMesh("cpu", torch.arange(size))
    finally:
        dist.destroy_process_group()


def parameters(case: Case, mesh: DeviceMesh) -> list[Parameter]:
    """Sharded parameters in float32, with gradients."""
    made = []
    for shape in case.layer * case.layers:
        param = Parameter(_sharded(shape, case, mesh))
        param.grad = _sharded(shape, case, mesh)
        made.append(param)
    return made


def _sharded(shape: Shape, case: Case, mesh: DeviceMesh) -> Tensor:
    local = torch.empty(case.local(shape, mesh.get_local_rank()), device="meta")
    stride = torch.empty(shape, device="meta").stride()
    where = [Shard(case.dim(shape))]
    return DTensor.from_local(local, mesh, where, run_check=False, shape=torch.Size(shape), stride=stride)
