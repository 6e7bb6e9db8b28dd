"""Parameters with placements, and the same run on them in many processes and in one."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import orthoptim as oo
from tests.conformance.methods import point
from tests.worked.base import AdaGradNorm
from tests.worked.method import LeapAndPolish

NAMES = {**vars(oo), "AdaGradNorm": AdaGradNorm, "LeapAndPolish": LeapAndPolish}

_meshes: dict[tuple[int, ...], Any] = {}


class Case(NamedTuple):
    """A parameter: its shape, how it is placed on a mesh of a shape, and how it is seen."""

    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    placements: str  # "0": Shard(0), "r": Replicate, "s0": strided; one for each dim of the mesh, blank between
    view: oo.View | str = "matrix"
    side: str = "auto"
    strategy: str = "local"  # of POGO with VAdam

    def name(self) -> str:
        return f"{'x'.join(map(str, self.shape))} on {self.mesh} by {self.placements}, {self.view}"


# Uneven shards (dims that the world does not divide) and empty ones (fewer rows than ranks) are among them.
FOUR = [
    Case((6, 40), (4,), "r"),
    Case((9, 3, 5), (4,), "0"),
    Case((3, 2, 5), (4,), "0"),  # an empty shard of the batch
    Case((5, 90), (4,), "1", strategy="two-phase"),
    Case((90, 5), (4,), "0", strategy="two-phase"),
    Case((2, 3, 50), (4,), "2", strategy="two-phase"),
    Case((3, 97), (4,), "0", strategy="exchange"),  # an empty shard
    Case((97, 6), (4,), "1", strategy="exchange"),
    Case((6, 8), (4,), "1", strategy="whole"),
    Case((10, 6), (4,), "0", strategy="whole"),  # 3, 3, 3, 1 rows
    Case((9, 9), (4,), "0", strategy="whole"),
    Case((2, 5), (4,), "0", strategy="whole"),
    Case((4, 3, 5, 5), (4,), "1", view="filters", strategy="two-phase"),
    Case((4, 5, 3, 5), (4,), "2", view="filters", strategy="two-phase"),  # columns that are not consecutive
    Case((12, 2, 3, 3), (4,), "0", view="filters", strategy="whole"),
    Case((9, 4, 3, 3), (4,), "0", view="kernels"),
    Case((3, 40), (2, 2), "r 1", strategy="two-phase"),  # HSDP
    Case((9, 7), (2, 2), "r 0", strategy="whole"),
    Case((6, 7, 6), (2, 2), "2 r", strategy="whole"),
    Case((3, 3), (2, 2), "0 r", strategy="whole"),  # one replica has no share of it
    Case((4, 3, 40), (2, 2), "0 2", strategy="two-phase"),  # batch and matrix
    Case((3, 4, 5), (2, 2), "0 1", strategy="whole"),
    Case((1, 3, 40), (2, 2), "0 2", strategy="two-phase"),  # no part of the batch for half of the ranks
    Case((8, 12), (2, 2), "0 1", strategy="whole"),  # both sides
    Case((8, 3), (2, 2), "s0 0", strategy="whole"),  # FSDP2 over tensor parallelism
    Case((4, 64), (2, 2), "s1 1", strategy="two-phase"),
    Case((4, 64), (2, 2), "0 0", strategy="exchange"),
]
TWO = [
    Case((4, 20), (2,), "1", strategy="two-phase"),
    Case((1, 21), (2,), "1", strategy="two-phase"),
    Case((3, 20), (2,), "0", strategy="exchange"),
    Case((7, 7), (2,), "0", strategy="whole"),
    Case((5, 3, 3), (2,), "0"),
    Case((6, 9), (2,), "r"),
]


def mesh_of(shape: tuple[int, ...]):
    """A mesh of the CPU, made once in each process."""
    if shape not in _meshes:
        names = ("a", "b")[: len(shape)]
        _meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return _meshes[shape]


def placements_of(text: str, mesh: tuple[int, ...]):
    found = []
    for i, word in enumerate(text.split()):
        if word == "r":
            found.append(Replicate())
        elif word[0] == "s":
            found.append(_StridedShard(int(word[1:]), split_factor=mesh[i + 1]))
        else:
            found.append(Shard(int(word)))
    return found


def place(tensor: Tensor, case: Case) -> DTensor:
    """Every rank takes its part of a tensor that all have."""
    return distribute_tensor(tensor, mesh_of(case.mesh), placements_of(case.placements, case.mesh), src_data_rank=None)


def start(case: Case, index: int, dtype: torch.dtype) -> Tensor:
    return point(*case.shape, dtype=dtype, view=case.view, side=case.side, seed=index).detach()


def target(case: Case, index: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + index)
    numbers = torch.randn(2, *case.shape, dtype=torch.float64, generator=generator)
    return (torch.complex(*numbers) if dtype.is_complex else numbers[0]).to(dtype)


def gradient(x: Tensor, target: Tensor, t: int) -> Tensor:
    """Entry by entry, so that every rank makes its own part; the minimum it points to moves."""
    return 0.3 * x - (1 + 0.3 * math.cos(0.7 * t)) * target


class Setting(NamedTuple):
    """An optimizer and its options, by name so that it can be sent to other processes."""

    method: str
    options: dict[str, Any]
    base: str | None = None
    base_options: dict[str, Any] = {}  # noqa: RUF012

    def make(self, params, **more):
        base = {} if self.base is None else {"base": NAMES[self.base](**self.base_options)}
        return NAMES[self.method](params, **{**self.options, **base, **more})

    def group(self, params, **more):
        base = {} if self.base is None else {"base": NAMES[self.base](**self.base_options)}
        return {"params": params, **self.options, **base, **more}

    def __str__(self) -> str:
        return f"{self.method} {self.options} {self.base} {self.base_options}"


def train(settings: list[Setting], cases: list[Case], dtype: torch.dtype, steps: int, sharded: bool):
    """All settings of one method on all cases, by one optimizer.

    Returns:
        For each setting a list of parameters, one for each case; and the optimizer.
    """
    starts = [start(case, i, dtype) for i, case in enumerate(cases)]
    targets = [target(case, i, dtype) for i, case in enumerate(cases)]
    if sharded:
        starts = [place(x, case) for x, case in zip(starts, cases, strict=True)]
        targets = [place(x, case) for x, case in zip(targets, cases, strict=True)]
    params = [[torch.nn.Parameter(x.clone()) for x in starts] for _ in settings]
    groups = []
    for setting, mine in zip(settings, params, strict=True):
        for view, side in dict.fromkeys((case.view, case.side) for case in cases):
            alike = [p for p, case in zip(mine, cases, strict=True) if (case.view, case.side) == (view, side)]
            groups.append(setting.group(alike, view=view, side=side))
    opt = NAMES[settings[0].method](groups)
    for t in range(steps):
        set_gradients(params, targets, t)
        opt.step()
    return params, opt


@torch.no_grad()
def set_gradients(params: list[list[Tensor]], targets: list[Tensor], t: int) -> None:
    for mine in params:
        for param, goal in zip(mine, targets, strict=True):
            if isinstance(param, DTensor):
                local = gradient(param.to_local(), goal.to_local(), t)
                grad = DTensor.from_local(
                    local,
                    param.device_mesh,
                    param.placements,
                    run_check=False,
                    shape=param.shape,
                    stride=param.stride(),
                )
            else:
                grad = gradient(param, goal, t)
            param.grad = grad
