"""The coroutines that step the matrices of which a rank holds pieces.

A base optimizer that is *entrywise* works on pieces: it makes of a gradient G up to a factor, and the factor of the sum
of a statistic over all pieces. So momentum stays where it is, and only X and G are moved. Of any other base, the
gradient and the state are moved.
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
from orthoptim.stiefel import Sums
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
    def own(self) -> dict[str, Kind]:
        """The method's own buffers."""
        buffers: dict[str, Kind] = self.algorithm.buffers(self.group)
        return buffers

    def block_step(self, **changes: Any) -> BlockStep:
        """What steps whole matrices."""
        group = {**self.group, **changes}
        return BlockStep(
            self.algorithm.update,
            group,
            self.hyperparameters,
            self.kinds,
            self.algorithm.decomposes,
            gradient=self.algorithm.gradient if self.algorithm.replaces_gradient(group) else None,
        )


class LocalDirection(NamedTuple):
    """The direction of pieces, as far as it is known without the other ranks."""

    direction: Direction
    entries: State  # new values of the base's entrywise buffers
    matrices: State  # and of those with a value for each matrix, where there is no statistic
    statistic: list[Tensor]  # of the pieces; none or one


def local_direction(method: Method, held: Held) -> LocalDirection:
    """Let an entrywise base advance on pieces."""
    base = method.base
    t = (held.state["num_updates"] + 1).to(held.lr.dtype)
    ascent = -held.grad if method.group["maximize"] else held.grad
    statistic = base.statistic(ascent)
    direction, new = base.direction(held.x, ascent, statistic, held.state, t, **method.hyperparameters)
    per_matrix = per_matrix_names(method.kinds)
    return LocalDirection(
        direction,
        {name: value for name, value in new.items() if name not in per_matrix},
        {name: value for name, value in new.items() if name in per_matrix},
        [] if statistic is None else [statistic],
    )


def rescale(
    method: Method, aimed: LocalDirection, statistic: list[Tensor], state: State, lr: Tensor
) -> tuple[Tensor | None, State]:
    """The factor of the direction and the new state of each matrix, from the statistic of all pieces.

    The base is asked again, about matrices without entries.
    """
    if not statistic:
        return aimed.direction.scale, aimed.matrices
    t = (state["num_updates"] + 1).to(lr.dtype)
    real = torch.empty(t.numel(), 0, 0, dtype=lr.dtype, device=lr.device)
    entry = real.to(aimed.direction.matrices.dtype)
    nothing = {name: real if kind == "moduli" else entry for name, kind in method.kinds.items()}
    known = {name: state[name] for name in per_matrix_names(method.kinds)}
    direction, new = method.base.direction(
        entry, entry, statistic[0], {**nothing, **known}, t, **method.hyperparameters
    )
    return direction.scale, {name: value for name, value in new.items() if name in known}


def two_phase(method: Method, held: Held, pieces: ShardedBucket) -> Moves:
    """The long side is cut: sums over pieces take the place of products over n."""
    aimed = local_direction(method, held)
    update, fresh, finite = yield from _by_columns(method, held, aimed, held.x, aimed.direction.matrices)
    return _keep_finite(held, update.x, {**aimed.entries, **fresh, **_count(held.state, update, finite)}, finite)


def exchange(method: Method, held: Held, pieces: ShardedBucket) -> Moves:
    """The short side is cut: columns for rows, two phases, and back."""
    layout = pieces.layout
    aimed = local_direction(method, held)
    mine = [held.x, aimed.direction.matrices]
    spans = even_spans(layout.n, len(layout.ranks))
    me = spans[layout.me]
    width = me.stop - me.start
    every = slice(None)
    coming = [packed_layout(*(FieldSpec((rows, width), tensor.dtype) for tensor in mine)) for rows, _ in layout.shapes]
    answer = yield AllToAll(
        [packed([tensor[:, :, span] for tensor in mine]) for span in spans],
        [[pieces.count * parts.size] for parts in coming],
        OUT,
    )
    received = unpack_all(coming, cast(list[list[Tensor]], answer), pieces.count)
    x, g = (
        assemble([parts[i] for parts in received], layout.rows, [every] * len(spans), (layout.p, width))
        for i in range(2)
    )
    update, fresh, finite = yield from _by_columns(method, held, aimed, x, g)
    coming = [packed_layout(FieldSpec((held.x.shape[1], span.stop - span.start), x.dtype)) for span in spans]
    answer = yield AllToAll(
        [packed([cut_out(update.x, rows, every)]) for rows in layout.rows],
        [[pieces.count * parts.size] for parts in coming],
        BACK,
    )
    received = unpack_all(coming, cast(list[list[Tensor]], answer), pieces.count)
    new_x = torch.cat([parts[0] for parts in received], -1)
    return _keep_finite(held, new_x, {**aimed.entries, **fresh, **_count(held.state, update, finite)}, finite)


def whole(method: Method, held: Held, pieces: ShardedBucket) -> Moves:
    """Each matrix is sent to one rank, which steps it as a single process would, and sends it back."""
    layout, base = pieces.layout.stored, method.base
    turn = pieces.turn
    aimed = (
        local_direction(method, held)
        if base.entrywise and not method.algorithm.replaces_gradient(method.group)
        else None
    )
    moved = method.kinds if aimed is None else method.own
    per_matrix = sorted(per_matrix_names(method.kinds))
    entries = [name for name in moved if name not in per_matrix]
    mine = [
        turn(held.x),
        turn(held.grad if aimed is None else aimed.direction.matrices),
        *(turn(held.state[name]) for name in entries),
    ]
    statistic = [] if aimed is None else aimed.statistic
    first, last = pieces.owners[layout.me]
    owned = last - first
    coming = [
        packed_layout(
            *(FieldSpec(shape, tensor.dtype) for tensor in mine), *(FieldSpec((), tensor.dtype) for tensor in statistic)
        )
        for shape in layout.shapes
    ]
    answer = yield AllToAll(
        by_owner([*mine, *statistic], pieces.owners), [[owned * parts.size] for parts in coming], OUT
    )
    received = unpack_all(coming, cast(list[list[Tensor]], answer), owned)
    shape = (layout.p, layout.n)
    x, g, *rest = (
        turn(assemble([parts[i] for parts in received], layout.rows, layout.columns, shape)) for i in range(len(mine))
    )
    # copies: to step a block may write to its state
    state = {name: held.state[name][first:last].clone() for name in per_matrix} | dict(zip(entries, rest, strict=True))
    if aimed is None:
        new_x, new = _advance(method.block_step(), x, g, state, held.lr)
    else:
        total = [torch.stack([parts[-1] for parts in received]).sum(0)] if statistic else []
        known = aimed._replace(
            direction=Direction(g, None if aimed.direction.scale is None else aimed.direction.scale[first:last]),
            matrices={name: value[first:last] for name, value in aimed.matrices.items()},
        )
        scale, fresh = rescale(method, known, total, state, held.lr)
        step = method.block_step(maximize=False)  # the direction descends already
        new_x, new = _advance(step, x, g, state, held.lr, scale, fresh)
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
    if aimed is not None:  # what owners return they have looked at
        finite = new["num_updates"] != held.state["num_updates"]
        new |= {name: where(finite, value, held.state[name]) for name, value in aimed.entries.items()}
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
    method: Method, held: Held, aimed: LocalDirection, x: Tensor, g: Tensor
) -> Generator[Request, Answer, tuple[Update, State, Tensor]]:
    """Step some columns: the update, the base's new state of each matrix, and which matrices are finite."""
    steps = method.algorithm.update_columns(x, g, held.lr, method.group)
    wanted = next(steps)
    total = aimed.direction.matrices.sum((-2, -1))  # is finite only if its terms are
    answer = yield AllReduce([*wanted, total, *aimed.statistic], SUM)
    sums = cast(list[Tensor], answer)
    total, *statistic = sums[len(wanted) :]
    scale, fresh = rescale(method, aimed, statistic, held.state, held.lr)
    if scale is not None:
        total = total * scale
    sums, stage = sums[: len(wanted)], SUM
    while True:
        try:
            wanted = steps.send(Sums(sums, scale))
        except StopIteration as stop:
            update, witness = stop.value
            return update, fresh, torch.isfinite(total + witness)
        stage += 1
        answer = yield AllReduce(wanted, stage)
        sums = cast(list[Tensor], answer)


def _count(state: State, update: Update, finite: Tensor) -> State:
    return {name: state[name] + more for name, more in update.counts(finite).items()}


class _Given:
    """In the place of a base: a direction that is known already."""

    def __init__(self, scale: Tensor | None, fresh: State) -> None:
        self.scale = scale
        self.fresh = fresh

    def statistic(self, grad: Tensor) -> None:
        return None

    def direction(self, x: Tensor, grad: Tensor, *args: Any, **kwargs: Any) -> tuple[Direction, State]:
        return Direction(grad, self.scale), self.fresh


def _advance(
    step: BlockStep,
    x: Tensor,
    g: Tensor,
    state: State,
    lr: Tensor,
    scale: Tensor | None = None,
    fresh: State | None = None,
) -> tuple[Tensor, State]:
    """The step of whole matrices, in blocks that fit the cache; along a given direction, where ``fresh`` is given."""
    if x.shape[0] == 0:
        return x, state
    size = block_size(x.shape[1], x.shape[2], x.dtype.itemsize)
    results = []
    for start in range(0, x.shape[0], size):
        some = slice(start, start + size)
        if fresh is not None:
            given = _Given(None if scale is None else scale[some], {name: v[some] for name, v in fresh.items()})
            step.base = cast(type[Base], given)
        results.append(step.advance(x[some], g[some], {name: v[some] for name, v in state.items()}, lr))
    if len(results) == 1:
        return results[0]
    return (
        torch.cat([new_x for new_x, _ in results]),
        {name: torch.cat([new[name] for _, new in results]) for name in results[0][1]},
    )


def _keep_finite(held: Held, x: Tensor, state: State, finite: Tensor) -> Result:
    """What is new where it is finite, else what is held."""
    return where(finite, x, held.x), {name: where(finite, new, held.state[name]) for name, new in state.items()}
