"""The contenders of the study: the library, and the usual ways to step sharded matrices.

All work in float32 and shard their momentum like the parameter. Each steps matrices that are whole on a rank there.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Parameter

import orthoptim as oo
from orthoptim import stiefel
from orthoptim.base.muon import _approximate_polar
from orthoptim.distributed.placements import cutting_dims
from orthoptim.engine.telemetry import Plan
from orthoptim.views import View
from orthoptim_experiments.bench.scale.tally import nbytes

LR = 0.1
Step = Callable[[], Any]


class Contender(NamedTuple):
    """A way to step parameters.

    Attributes:
        step: a step.
        state: the bytes of what is kept on this rank from one step to the next; asked for after a step.
        owned: for each rank, how many entries the matrices have that are sent to it whole.
        work: for each rank, the sum of p²n over these matrices.
        out: how many numbers go to the owner of a matrix, for each of its entries.
        back: and how many come back.
        plan: by which strategies; none but for the library itself.
    """

    step: Step
    state: Callable[[], int]
    owned: list[int]
    work: list[int]
    out: int
    back: int
    plan: Plan


def ours(params: list[Parameter], **options: Any) -> Contender:
    """POGO with its default base and landing; ``options``: others of its own."""
    with warnings.catch_warnings(action="ignore"):  # that parameters on the meta device cannot be checked
        optimizer = oo.POGO(params, LR, **options)
    owned, work = [0] * dist.get_world_size(), [0] * dist.get_world_size()
    plan = optimizer.plan()
    for part in (part for parts in optimizer._sharded_step().rounds for part in parts):
        for rank, (first, last) in enumerate(part.owners):
            owned[rank] += (last - first) * part.p * part.n
            work[rank] += (last - first) * part.p**2 * part.n
    return Contender(
        optimizer.step,
        lambda: nbytes(tensor for state in optimizer.state.values() for tensor in state.values()),
        owned,
        work,
        2,
        1,
        plan,
    )


def gather(params: list[Parameter]) -> Contender:
    """POGO with ``full_tensor``: every rank gathers X and G of one matrix after another, and steps them all."""
    moments, squares = _state(params)

    def step() -> None:
        local, scales = _local_direction(params, moments, squares)
        for i, (param, moment) in enumerate(zip(local, moments, strict=True)):
            placed = cast(DTensor, params[i].data)
            if _is_cut(placed):
                shape, stride, mesh, where = placed.shape, placed.stride(), placed.device_mesh, placed.placements
                g = DTensor.from_local(moment, mesh, where, run_check=False, shape=shape, stride=stride)
                new = _pogo(placed.full_tensor(), g.full_tensor(), scales[i])
                param.copy_(_shards(new, _dim(placed))[dist.get_rank()])
            elif param.numel():
                param.copy_(_pogo(param, moment, scales[i]))

    return Contender(
        step,
        lambda: nbytes(iter([*moments, squares])),
        [0] * dist.get_world_size(),
        [0] * dist.get_world_size(),
        0,
        0,
        Plan(),
    )


def owner(params: list[Parameter]) -> Contender:
    """POGO as Muon is often run: X and G of a matrix are gathered on one rank, in turn, and X⁺ is scattered."""
    moments, squares = _state(params)

    def step() -> None:
        local, scales = _local_direction(params, moments, squares)
        for i, (param, moment) in enumerate(zip(local, moments, strict=True)):
            _by_owner(params[i], [param, moment], param, i, lambda x, g, scale=scales[i]: _pogo(x, g, scale))

    return Contender(step, lambda: nbytes(iter([*moments, squares])), *_in_turn(params), 2, 1, Plan())


def muon(params: list[Parameter]) -> Contender:
    """Muon itself: G alone is gathered on one rank, in turn, and its polar factor is scattered. X leaves Stiefel."""
    moments, _ = _state(params)

    def step() -> None:
        for i, param in enumerate(params):
            local, grad = cast(DTensor, param.data).to_local(), cast(DTensor, param.grad).to_local()
            moments[i].lerp_(grad, 0.05)
            update = torch.empty_like(local)
            _by_owner(param, [grad.lerp(moments[i], 0.95)], update, i, _polar)
            local.sub_(update, alpha=LR)

    return Contender(step, lambda: nbytes(iter(moments)), *_in_turn(params), 1, 1, Plan())


CONTENDERS: dict[str, Callable[[list[Parameter]], Contender]] = {
    "orthoptim": ours,
    "gather": gather,
    "owner": owner,
    "Muon": muon,
}


def _is_cut(param: Tensor) -> bool:
    return bool(cutting_dims(cast(DTensor, param), View()))


def _dim(param: Tensor) -> int:
    return int(cast(Shard, cast(DTensor, param).placements[0]).dim)


def _shards(whole: Tensor, dim: int) -> list[Tensor]:
    """The shards of all ranks; the last may be smaller, or empty."""
    size = dist.get_world_size()
    shards = list(whole.chunk(size, dim))
    return shards + [whole.narrow(dim, 0, 0)] * (size - len(shards))


def _in_turn(params: list[Parameter]) -> tuple[list[int], list[int]]:
    """The entries and the work of each rank, if parameter i is that of rank i, modulo their number."""
    size = dist.get_world_size()
    owned, work = [0] * size, [0] * size
    for i, param in enumerate(params):
        owned[i % size] += param.numel() * _is_cut(param.data)
        work[i % size] += param.numel() * min(param.shape[-2:]) * _is_cut(param.data)
    return owned, work


def _state(params: list[Parameter]) -> tuple[list[Tensor], Tensor]:
    """First moments, and second ones: a number per parameter."""
    local = [cast(DTensor, param.data).to_local() for param in params]
    return [torch.zeros_like(tensor) for tensor in local], torch.zeros(len(params), device=local[0].device)


def _local_direction(params: list[Parameter], moments: list[Tensor], squares: Tensor) -> tuple[list[Tensor], Tensor]:
    """VAdam on shards: what this rank holds of the parameters, and the factors of their moments."""
    grads = [cast(DTensor, param.grad).to_local() for param in params]
    for moment, grad in zip(moments, grads, strict=True):
        moment.lerp_(grad, 0.1)
    square = torch.stack([grad.square().sum() for grad in grads])
    dist.all_reduce(square)
    squares.lerp_(square, 0.001)
    return [cast(DTensor, param.data).to_local() for param in params], squares.rsqrt()


def _pogo(x: Tensor, g: Tensor, scale: Tensor) -> Tensor:
    (matrices,), (direction,) = View().to_matrices(x), View().to_matrices(g)
    batch = matrices.shape[:-2]
    factor = scale.expand(batch)
    step = stiefel.pogo_step(matrices, direction, LR, stiefel.policy("safe"), scale=factor, normalized=True)
    return View().from_matrices([step.x], x.shape)


def _polar(g: Tensor) -> Tensor:
    return View().from_matrices([_approximate_polar(x, 5) for x in View().to_matrices(g)], g.shape)


def _by_owner(
    param: Parameter, tensors: Sequence[Tensor], into: Tensor, turn: int, compute: Callable[..., Tensor]
) -> None:
    """Gather tensors that lie as a parameter does on the rank whose turn it is, compute there, and scatter."""
    if not _is_cut(param.data):
        if into.numel():
            into.copy_(compute(*tensors))
        return
    dim, root, local = _dim(param.data), turn % dist.get_world_size(), torch.stack(list(tensors))
    if dist.get_rank() != root:
        dist.gather(local, dst=root)
        dist.scatter(into, src=root)
        return
    like = local.new_empty(()).expand(len(tensors), *param.shape)
    parts = [local.new_empty(shard.shape) for shard in _shards(like, dim + 1)]
    dist.gather(local, parts, dst=root)
    whole = torch.cat(parts, dim + 1)
    del parts, local
    new = compute(*whole.unbind(0))
    del whole
    back = [shard.contiguous() for shard in _shards(new, dim)]
    del new
    dist.scatter(into, back, src=root)
