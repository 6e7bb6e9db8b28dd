"""How a plan is made: matrices of one shape, dtype and device as a bucket, however many parameters they came from.

On a CPU a bucket is worked on in blocks that fit the cache. A block is several small parameters of one shape gathered
into one batch, or a whole parameter, or a part of a large one. Tiny matrices are gathered with the batch as the last
dim in memory, so that whatever is done to them runs along it; as each of their hundred small operations has its price,
small parameters of any shape are put together.

On a GPU a block is as large as memory allows, and parameters of any shape are put together: what counts is the number
of launches.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from orthoptim.engine import kernels
from orthoptim.engine.naming import names_of
from orthoptim.engine.plan import Block, BlockTensors, Bucket, LocalPlan, has_address, split
from orthoptim.engine.rule import UpdateRule
from orthoptim.stiefel.batches import TINY, by_columns, is_gpu
from orthoptim.stiefel.cost_model import BLOCK_CAP_MB, block_size
from orthoptim.tensors import compute_dtype, local_part, real_dtype
from orthoptim.views import View, ViewLike


def make_plan(
    rule: UpdateRule,
    params: list[Tensor],
    states: list[Tensor],
    local_views: Mapping[int, View],
    state: Mapping[Tensor, dict[str, Tensor]],
) -> LocalPlan:
    """The plan of one param group; see :class:`LocalPlan`.

    Args:
        rule: how the group is updated.
        params: the parameters that step.
        states: their states.
        local_views: for the local part of a DTensor, by ``id``, the view of that part.
        state: that of the optimizer.
    """
    group, compiling = rule.group, torch.compiler.is_compiling()
    view = View.of(group["view"]).scaled(group["scale"])
    parts = None
    if view.is_divided:
        parts = [
            (i, part)
            for i, param in enumerate(params)
            for part in local_views.get(id(param), view).parts(param.shape, group["side"])
        ]
    owners = list(range(len(params))) if parts is None else [i for i, _ in parts]
    values = set(rule.matrix_values)
    columns = {
        name: split(states[i :: len(rule.state_names)], parts, name in values)
        for i, name in enumerate(rule.state_names)
        if states and name != "step"
    }
    first_parts = {owner: i for i, owner in reversed(list(enumerate(owners)))}  # they count the steps
    counters = states[rule.state_names.index("step") :: len(rule.state_names)]
    steps = [counters[owner] if i == first_parts[owner] else None for i, owner in enumerate(owners) if states]
    members = split(params, parts)
    names = [""] * len(params) if compiling else _names(rule, params)
    compile, cap_mb = group["compile"] or compiling, group["block_cap_mb"]
    buckets = [
        _complete(rule, bucket, [names[i] for i in owners], members, columns)
        for bucket in make_buckets(members, view, group["side"], list(columns.values()), compile, cap_mb)
    ]
    tensors: dict[str, list[Any]] = {"param": members, "step": steps, **columns}
    blocks = [
        [_block_tensors(block, tensors, values, bucket.half) for block in bucket.blocks]
        if states and bucket.kernel is None
        else []
        for bucket in buckets
    ]
    return LocalPlan(rule, state, params, states, parts, members, columns, steps, buckets, blocks)


def _complete(
    rule: UpdateRule, bucket: Bucket, names: Sequence[str], members: list[Tensor], columns: Mapping[str, list[Tensor]]
) -> Bucket:
    """The bucket with its names and its form; in one block, where a kernel covers it."""
    form = rule.method.form(bucket.p, bucket.n, rule.group, bucket.device.type)
    bucket = bucket._replace(group=rule.index, names=tuple(names[i] for i in bucket.members), form=form)
    kernel = kernels.covers(rule, bucket, members, columns)
    if kernel is None:
        return bucket
    block = bucket.blocks[0]._replace(members=bucket.members, matrices=sum(bucket.counts), part=None, mixed=True)
    return bucket._replace(form="triton", blocks=[block], kernel=kernel)


def _block_tensors(block: Block, tensors: Mapping[str, list[Any]], values: set[str], half: bool) -> BlockTensors:
    """Those of a block among the tensors of all members, by name."""
    chosen = {name: block.pick(listed) for name, listed in tensors.items() if half or name != "master"}
    # if the next part of a parameter raises, its matrices are skipped
    begins = block.part is None or block.part[0] == 0
    steps = together([each for each in chosen.pop("step") if begins and each is not None])
    chosen["param"] = [param.detach() for param in chosen["param"]]
    return BlockTensors(
        block, {name: together(listed, block.mixed) for name, listed in chosen.items()}, steps, values, half
    )


def _names(rule: UpdateRule, params: list[Tensor]) -> list[str]:
    pairs = zip(names_of(rule.group), rule.group["params"], strict=True)
    name_of = {id(local_part(param)): name for name, param in pairs}
    return [name_of[id(param)] for param in params]


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


def is_dense(a: Tensor) -> bool:
    """Whether the entries fill a stretch of memory in the order of rows or of columns."""
    return (a.is_contiguous() or by_columns(a)) and not a.is_conj()


def _places(tensors: list[Tensor]) -> list[int]:
    """Where tensors begin in memory; those without an address in their storage, if it is one."""
    if has_address(tensors[0]):
        return [tensor.data_ptr() for tensor in tensors]
    if len({tensor.untyped_storage()._cdata for tensor in tensors}) > 1:
        return []
    return [int(tensor.storage_offset()) * tensor.itemsize for tensor in tensors]


def together(tensors: list[Tensor], mixed: bool = False) -> list[Tensor]:
    """Tensors of one shape (...) as a single one (k, ...) where they lie side by side, else as they are.

    Its strides are those of :func:`orthoptim.engine.plan.stacked`, of which this saves the copy.

    Args:
        tensors: of one shape.
        mixed: whether they are of several shapes: then all entries are in one dim.
    """
    if len(tensors) < 2 or torch.compiler.is_compiling():
        return tensors
    if mixed:
        return _in_one_row(tensors)
    first, size = tensors[0], tensors[0].nbytes
    if size == 0 or not is_dense(first):
        return tensors
    start, *others = _places(tensors[:2]) or [0]
    stop = start + len(tensors) * size
    if others != [start + size] or stop > _end_of_storage(first):  # beyond it are neighbours by chance
        return tensors
    stride = first.stride()
    if _places(tensors) != list(range(start, stop, size)):
        return tensors
    if stride and any(t.stride() != stride for t in tensors):
        return tensors
    flat = first.as_strided((len(tensors) * first.numel(),), (1,))
    if by_columns(first):
        return [flat.view(len(tensors), *first.mT.shape).mT]
    return [flat.view(len(tensors), *first.shape)]


def _in_one_row(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors of any shape as one of one dim, where their entries lie side by side in the order of rows."""
    sizes = [tensor.nbytes for tensor in tensors]
    start, *others = _places(tensors) or [0]
    *expected, stop = accumulate(sizes, initial=start)
    if not others or [start, *others] != expected or stop > _end_of_storage(tensors[0]):
        return tensors
    if not all(tensor.is_contiguous() and not tensor.is_conj() for tensor in tensors):
        return tensors
    return [tensors[0].as_strided((sum(tensor.numel() for tensor in tensors),), (1,))]


def _end_of_storage(tensor: Tensor) -> int:
    storage = tensor.untyped_storage()
    return storage.nbytes() + (storage.data_ptr() if has_address(tensor) else 0)
