"""The coroutines that step the matrices of which a rank holds pieces.

A base optimizer that needs no whole matrices advances on pieces: entry by entry it makes G up to a factor of each
matrix, and from the sum of its statistic over all pieces the factor. So momentum stays where it is, and only X and G
are moved. For other bases the gradient and the state are moved.
"""

from collections.abc import Generator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from orthoptim.base import Base, Direction, Kind, State, per_matrix
from orthoptim.distributed.collectives import BACK, OUT, SUM, AllReduce, AllToAll, Answer, Request
from orthoptim.distributed.packing import FieldSpec, by_owner, packed, packed_layout, unpack_all
from orthoptim.distributed.sharded_buckets import ShardedBucket, assemble, cut_out
from orthoptim.engine.step import BlockStep, Update, where
from orthoptim.stiefel import flatten
from orthoptim.stiefel.cost_model import block_size

Result = tuple[Tensor, State]  # new X, and new state of the pieces and of the matrices; the old, where not finite
Moves = Generator[Request, Answer, Result]


class Held(NamedTuple):
    """What a rank holds of a bucket: X and gradient (B, rows, columns), state, and the learning rate."""

    x: Tensor
    grad: Tensor
    state: State
    lr: Tensor


class Method(NamedTuple):
    """What steps a group: the method, its options, and its base optimizer."""

    algorithm: Any  # the class, an Orthoptimizer
    group: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    kinds: Mapping[str, Kind]

    @property
    def base(self) -> type[Base]:
        """The base optimizer."""
        return Base.named(self.group["base"])

    @property
    def buffers(self) -> dict[str, Kind]:
        """The buffers that the method keeps beside those of its base."""
        buffers: dict[str, Kind] = self.algorithm.buffers(self.group)
        return buffers

    def block_step(self, **changes: Any) -> BlockStep:
        """What steps whole matrices."""
        group = {**self.group, **changes}
        return BlockStep(
            self.algorithm.update_whole,
            group,
            self.hyperparameters,
            self.kinds,
            self.algorithm.decomposes,
            gradient=self.algorithm.gradient if self.algorithm.replaces_gradient(group) else None,
        )


class LocalDirection(NamedTuple):
    """What a base makes of pieces of the gradient without the other ranks."""

    g: Tensor  # the direction, up to a factor of each matrix
    entries: State  # new values of the base's buffers with a value per entry
    statistic: list[Tensor]  # of the pieces; none or one


def local_direction(method: Method, held: Held) -> LocalDirection:
    """Let a base advance on pieces."""
    ascent = -held.grad if method.group["maximize"] else held.grad
    statistic = method.base.statistic(ascent)
    t = _step_number(held.state, held.lr)[:, None, None]
    g, entries = method.base.advance(ascent, held.state, t, **method.hyperparameters)
    return LocalDirection(g, entries, [] if statistic is None else [statistic])


def scale_of(method: Method, statistic: list[Tensor], state: State, lr: Tensor) -> tuple[Tensor | None, State]:
    """The factor of the direction and the base's new state of each matrix, from the statistic of all pieces."""
    t = _step_number(state, lr)
    return method.base.scale(statistic[0] if statistic else None, state, t, **method.hyperparameters)


def two_phase(method: Method, held: Held, pieces: ShardedBucket) -> Moves:
    """The long side is cut: sums over pieces take the place of products over n."""
    local = local_direction(method, held)
    update, fresh, finite = yield from _by_columns(method, held, local, held.x, local.g)
    return _keep_finite(held, update.x, {**local.entries, **fresh, **_count(held.state, update, finite)}, finite)


def exchange(method: Method, held: Held, pieces: ShardedBucket) -> Moves:
    """The short side is cut: columns for rows, two phases, and back."""
    layout = pieces.layout
    local = local_direction(method, held)
    sent = [held.x, local.g]
    spans = even_spans(layout.n, len(layout.ranks))
    width = spans[layout.me].stop - spans[layout.me].start
    every = slice(None)
    coming = [packed_layout(*(FieldSpec((rows, width), tensor.dtype) for tensor in sent)) for rows, _ in layout.shapes]
    answer = yield AllToAll(
        [packed([tensor[:, :, span] for tensor in sent]) for span in spans],
        [[pieces.count * parts.size] for parts in coming],
        OUT,
    )
    received = unpack_all(coming, cast(list[list[Tensor]], answer), pieces.count)
    x, g = (
        assemble([parts[i] for parts in received], layout.rows, [every] * len(spans), (layout.p, width))
        for i in range(2)
    )
    update, fresh, finite = yield from _by_columns(method, held, local, x, g)
    coming = [packed_layout(FieldSpec((held.x.shape[1], span.stop - span.start), x.dtype)) for span in spans]
    answer = yield AllToAll(
        [packed([cut_out(update.x, rows, every)]) for rows in layout.rows],
        [[pieces.count * parts.size] for parts in coming],
        BACK,
    )
    received = unpack_all(coming, cast(list[list[Tensor]], answer), pieces.count)
    new_x = torch.cat([parts[0] for parts in received], -1)
    return _keep_finite(held, new_x, {**local.entries, **fresh, **_count(held.state, update, finite)}, finite)


def whole(method: Method, held: Held, pieces: ShardedBucket) -> Moves:
    """Each matrix is sent to one rank, which steps it as a single process would, and sends it back."""
    layout, base = pieces.layout.stored, method.base
    turn = pieces.turn
    on_pieces = not (base.whole_matrix or method.algorithm.replaces_gradient(method.group))
    local = local_direction(method, held) if on_pieces else None
    moved = method.kinds if local is None else method.buffers
    per_matrix = sorted(per_matrix_names(method.kinds))
    entries = [name for name in moved if name not in per_matrix]
    sent = [
        turn(held.x),
        turn(held.grad if local is None else local.g),
        *(turn(held.state[name]) for name in entries),
    ]
    statistic = [] if local is None else local.statistic
    first, last = pieces.owners[layout.me]
    owned = last - first
    coming = [
        packed_layout(
            *(FieldSpec(shape, tensor.dtype) for tensor in sent), *(FieldSpec((), tensor.dtype) for tensor in statistic)
        )
        for shape in layout.shapes
    ]
    answer = yield AllToAll(
        by_owner([*sent, *statistic], pieces.owners), [[owned * parts.size] for parts in coming], OUT
    )
    received = unpack_all(coming, cast(list[list[Tensor]], answer), owned)
    shape = (layout.p, layout.n)
    x, g, *rest = (
        turn(assemble([parts[i] for parts in received], layout.rows, layout.columns, shape)) for i in range(len(sent))
    )
    # copies: to step a block may write to its state
    state = {name: held.state[name][first:last].clone() for name in per_matrix} | dict(zip(entries, rest, strict=True))
    if local is None:
        new_x, new = _step_blocks(method.block_step(), x, g, state, held.lr)
    else:
        total = [torch.stack([parts[-1] for parts in received]).sum(0)] if statistic else []
        scale, fresh = scale_of(method, total, state, held.lr)
        step = method.block_step(maximize=False)  # the direction descends already
        new_x, new = _step_blocks(step, x, g, state, held.lr, (scale, fresh))
    back = [turn(new_x), *(turn(new[name]) for name in entries)]
    values = packed([new[name] if name in new else state[name] for name in per_matrix])
    of_pieces = packed_layout(*(FieldSpec(layout.shapes[layout.me], tensor.dtype) for tensor in back))
    of_values = packed_layout(*(FieldSpec((), held.state[name].dtype) for name in per_matrix))
    answer = yield AllToAll(
        [
            [*packed([cut_out(tensor, rows, columns) for tensor in back]), *values]
            for rows, columns in zip(layout.rows, layout.columns, strict=True)
        ],
        [[(b - a) * of_pieces.size, (b - a) * of_values.size] for a, b in pieces.owners],
        BACK,
    )
    # owners have ranges of matrices, one after another
    returned = [torch.cat(parts) for parts in zip(*cast(list[list[Tensor]], answer), strict=True)]
    new_x, *others = map(turn, of_pieces.unpack(returned[0], pieces.count))
    new = dict(zip([*entries, *per_matrix], [*others, *of_values.unpack(returned[1], pieces.count)], strict=True))
    if local is not None:  # owners have masked what they return
        finite = new["num_updates"] != held.state["num_updates"]
        new |= {name: where(finite, value, held.state[name]) for name, value in local.entries.items()}
    return new_x, new


STRATEGIES = {"two-phase": two_phase, "exchange": exchange, "whole": whole}


def per_matrix_names(kinds: Mapping[str, Kind]) -> set[str]:
    """The buffers that hold one value for each matrix."""
    return {name for name, kind in kinds.items() if per_matrix(kind)}


def even_spans(size: int, count: int) -> list[slice]:
    """``size`` places in ``count`` spans, none longer by more than one than another."""
    cuts = [size * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(cuts)]


def _by_columns(
    method: Method, held: Held, local: LocalDirection, x: Tensor, g: Tensor
) -> Generator[Request, Answer, tuple[Update, State, Tensor]]:
    """Step columns: the update, the base's new state of each matrix, and which matrices are finite."""
    direction = Direction(g, known=False)
    t = _step_number(held.state, held.lr)
    steps = flatten(method.algorithm.update(x, direction, held.lr, {}, t, method.group))
    wanted = next(steps)
    total = local.g.sum((-2, -1))  # is finite only if its terms are
    answer = yield AllReduce([*wanted, total, *local.statistic], SUM)
    sums = cast(list[Tensor], answer)
    total, *statistic = sums[len(wanted) :]
    scale, fresh = scale_of(method, statistic, held.state, held.lr)
    direction.set_scale(scale)
    if scale is not None:
        total = total * scale
    sums, stage = sums[: len(wanted)], SUM
    while True:
        stage += 1
        try:
            wanted = steps.send(sums)
        except StopIteration as stop:
            update: Update = stop.value
            break
        answer = yield AllReduce(wanted, stage)
        sums = cast(list[Tensor], answer)
    probe = update.finiteness_probe
    if probe is None:
        answer = yield AllReduce([update.x.sum((-2, -1))], stage)
        (probe,) = cast(list[Tensor], answer)
    return update, fresh, torch.isfinite(total + probe)


def _count(state: State, update: Update, finite: Tensor) -> State:
    return {name: state[name] + more for name, more in update.counts(finite).items()}


def _step_number(state: State, lr: Tensor) -> Tensor:
    """The number of this step of each matrix, from 1."""
    return (state["num_updates"] + 1).to(lr.dtype)


def _step_blocks(
    step: BlockStep,
    x: Tensor,
    g: Tensor,
    state: State,
    lr: Tensor,
    scaled: tuple[Tensor | None, State] | None = None,
) -> tuple[Tensor, State]:
    """The step of whole matrices, in blocks that fit the cache.

    Args:
        step: what steps a block.
        x: the matrices.
        g: their gradient; or the direction up to its factor, where ``scaled`` is given.
        state: their state.
        lr: learning rate.
        scaled: what :func:`scale_of` returns.
    """
    if x.shape[0] == 0:
        return x, state
    size = block_size(x.shape[1], x.shape[2], x.dtype.itemsize, x.device.type)
    results = []
    for start in range(0, x.shape[0], size):
        block = slice(start, start + size)
        held = {name: value[block] for name, value in state.items()}
        if scaled is None:
            results.append(step.compute(x[block], g[block], held, lr))
            continue
        direction = Direction(g[block], None if scaled[0] is None else scaled[0][block])
        fresh = {name: value[block] for name, value in scaled[1].items()}
        results.append(step.descend(x[block], direction, fresh, held, _step_number(held, lr), lr))
    if len(results) == 1:
        return results[0]
    return (
        torch.cat([new_x for new_x, _ in results]),
        {name: torch.cat([new[name] for _, new in results]) for name in results[0][1]},
    )


def _keep_finite(held: Held, x: Tensor, state: State, finite: Tensor) -> Result:
    """What is new where it is finite, else what is held."""
    return where(finite, x, held.x), {name: where(finite, new, held.state[name]) for name, new in state.items()}
