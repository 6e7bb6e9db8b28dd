"""How the matrices of a bucket are stepped over ranks: chosen by how they are cut and by their shape alone.

| cut | strategy | collectives of a step |
|---|---|---|
| not at all: replicated, or split over the batch | ``local`` | none |
| near-square, n/p < 2w; or the method or its base needs whole matrices | ``whole`` | 2 all-to-all |
| the long side | ``two-phase`` | 2 all-reduce |
| the short side | ``exchange``: to a cut of the long side, two-phase, and back | 2 all-to-all, 2 all-reduce |
| both sides | ``whole`` | 2 all-to-all |

``whole`` sends 3pn/w numbers per matrix and rank (X and G to an owner, X⁺ back); ``two-phase`` all-reduces XXᴴ and XGᴴ,
then RRᴴ, which sends 6p², whatever n is: less from n/p = 2w on. ``exchange`` sends the sum of both, never less than
``whole`` on average, and from there on at most twice as much; but all ranks share in every matrix, where few owners
would have much to do while the others wait. Cuts in strides, as of FSDP2 over tensor parallelism, are cuts like any
other: sums do not ask for the order of columns, and owners put it right. Replicas (HSDP) each step a share of the
matrices, and send the others what is new: one more all-to-all.

A base optimizer that needs no whole matrices advances on pieces: entry by entry it makes G up to a factor of each
matrix, and from the sum of its statistic over all pieces the factor. So momentum stays where it is, and only X and G
are moved. For other bases the gradient and the state are moved.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.base import Base, Direction, Kind, State, per_matrix
from orthoptim.distributed.buckets import ShardedBucket, assemble, cut, sizes, to_owners
from orthoptim.distributed.collectives import (
    BACK,
    OUT,
    SHARE,
    SUM,
    AllReduce,
    AllToAll,
    Answer,
    FieldSpec,
    Received,
    Request,
    Sums,
    concatenated,
    packed,
    packed_layout,
)
from orthoptim.distributed.layout import Layout
from orthoptim.engine.rule import Update, UpdateRule
from orthoptim.engine.step import BlockStep, where
from orthoptim.stiefel import flatten
from orthoptim.stiefel.cost_model import block_size


def choose(layout: Layout, by_columns: bool) -> str:
    """The strategy of a bucket.

    Args:
        layout: how its matrices are cut.
        by_columns: whether method and base can step some of the columns, knowing sums over all of them.
    """
    sides, p, n, world = layout.cut, layout.p, layout.n, len(layout.ranks)
    if sides == "none":
        return "local"
    if sides == "both" or not by_columns or n < 2 * p * world:
        return "whole"
    return "two-phase" if sides == "columns" else "exchange"


Result = tuple[Tensor, State]  # new X, and new state of the pieces and of the matrices; the old, where not finite
Moves = Generator[Request, Answer, Result]


class Held(NamedTuple):
    """What a rank holds of a bucket: X and G (B, rows, columns), state, statistic of the base, and learning rate.

    Attributes:
        x: pieces of the matrices.
        g: pieces of the gradient; or of the direction, up to a factor of each matrix, where the base has advanced.
        state: of the pieces and of the matrices.
        statistic: that of the base for each of the pieces; none or one.
        lr: learning rate.
        advanced: whether the base has advanced.
    """

    x: Tensor
    g: Tensor
    state: State
    statistic: list[Tensor]
    lr: Tensor
    advanced: bool

    def part(self, first: int, last: int) -> Held:
        """The same of some of the matrices."""
        if (first, last) == (0, self.x.shape[0]):
            return self
        state = {name: value[first:last] for name, value in self.state.items()}
        return self._replace(
            x=self.x[first:last], g=self.g[first:last], state=state, statistic=[s[first:last] for s in self.statistic]
        )


class Method(NamedTuple):
    """The method of a group and its options, for one bucket."""

    rule: UpdateRule
    form: str
    base: type[Base]

    @property
    def group(self) -> Mapping[str, Any]:
        """The options."""
        return {**self.rule.group, "form": self.form}

    def block_step(self, **changes: Any) -> BlockStep:
        """What steps whole matrices."""
        return BlockStep(self.rule, self.form, **changes)

    def scale(self, statistic: list[Tensor], state: State, lr: Tensor) -> tuple[Tensor | None, State]:
        """The factor of the direction and the base's new state of each matrix, from the statistic of all pieces."""
        t = _step_number(state, lr)
        return self.base.scale(statistic[0] if statistic else None, state, t, **self.rule.hyperparameters)


def step_bucket(rule: UpdateRule, bucket: ShardedBucket, x: Tensor, grad: Tensor, state: State, lr: Tensor) -> Moves:
    """The coroutine that steps the pieces of a bucket: direction, update by its strategy, mask.

    Args:
        rule: the method and the options of its group.
        bucket: the bucket.
        x: pieces (B, rows, columns) of the matrices.
        grad: those of the gradient.
        state: those of the state, and values of the matrices (B,).
        lr: learning rate.
    """
    method = Method(rule, bucket.form, Base.named(rule.group["base"]))
    advanced: State = {}
    needs_whole = method.base.whole_matrix or rule.method.replaces_gradient(rule.group)
    held = Held(x, grad, state, [], lr, not needs_whole)
    if not needs_whole:
        ascent = -grad if rule.group["maximize"] else grad
        statistic = method.base.statistic(ascent)
        t = _step_number(state, lr)[:, None, None]
        g, advanced = method.base.advance(ascent, state, t, **rule.hyperparameters)
        held = held._replace(g=g, statistic=[] if statistic is None else [statistic])
    first, last = bucket.share
    new_x, new = x[:0], cast(State, {})
    if last > first:
        new_x, new = yield from STRATEGIES[bucket.strategy](method, held.part(first, last), bucket)
    if bucket.replicas is not None:
        new_x, new = yield from _share(method, held, bucket, new_x, new)
    if advanced:
        finite = new["num_updates"] != state["num_updates"]
        new |= {name: where(finite, value, state[name]) for name, value in advanced.items()}
    return new_x, new


def two_phase(method: Method, held: Held, bucket: ShardedBucket) -> Moves:
    """The long side is cut: sums over pieces take the place of products over n."""
    update, new, finite = yield from _by_columns(method, held, held.x, held.g)
    return where(finite, update.x, held.x), _mask(held, new, finite)


def exchange(method: Method, held: Held, bucket: ShardedBucket) -> Moves:
    """The short side is cut: columns for rows, two phases, and back."""
    pieces, columns = bucket.layout.piece_by_columns, bucket.layout.columns_by_rows
    sent, count = [held.x, held.g], held.x.shape[0]
    answer = yield AllToAll(cut(pieces, sent), sizes(columns, sent, count), OUT)
    x, g = assemble(columns, cast(Received, answer), sent, count)
    update, new, finite = yield from _by_columns(method, held, x, g)
    answer = yield AllToAll(cut(columns, [update.x]), sizes(pieces, [update.x], count), BACK)
    (new_x,) = assemble(pieces, cast(Received, answer), [update.x], count)
    return where(finite, new_x, held.x), _mask(held, new, finite)


def whole(method: Method, held: Held, bucket: ShardedBucket) -> Moves:
    """Each matrix is sent to one rank, which steps it as a single process would, and sends it back."""
    layout, turn, kinds = bucket.layout.stored, bucket.turn, method.rule.kinds
    moved = method.rule.method.buffers(method.rule.group) if held.advanced else kinds
    values = per_matrix_names(kinds)
    entries = [name for name in moved if name not in values]
    sent = [turn(held.x), turn(held.g), *(turn(held.state[name]) for name in entries), *held.statistic]
    first, last = bucket.owners[layout.me]
    answer = yield AllToAll(to_owners(bucket, sent), sizes(layout, sent, last - first), OUT)
    received = assemble(layout, cast(Received, answer), sent, last - first)
    x, g, *rest = map(turn, received[: 2 + len(entries)])
    # copies: to step a block may write to its state
    state = {name: held.state[name][first:last].clone() for name in values} | dict(zip(entries, rest, strict=True))
    scaled = method.scale(received[2 + len(entries) :], state, held.lr) if held.advanced else None
    # the direction of a base that has advanced descends already
    step = method.block_step(maximize=False) if held.advanced else method.block_step()
    new_x, new = _step_blocks(step, x, g, state, held.lr, scaled)
    back = [turn(new_x), *(turn(new[name]) for name in entries)]
    of_matrices = [new[name] if name in new else state[name] for name in values]
    here = [turn(held.x), *(turn(held.state[name]) for name in entries), *(held.state[name] for name in values)]
    record = packed_layout(*map(_spec, here))
    expected = {m: [(b - a) * record.size] for m, (a, b) in enumerate(bucket.owners) if b > a and record.size}
    answer = yield AllToAll(cut(layout, back, of_matrices), expected, BACK)
    # owners have ranges of matrices, one after another
    returned = concatenated(cast(Received, answer), bucket.device)
    fields = record.unpack(returned, held.x.shape[0])
    pieces = [turn(field) for field in fields[: 1 + len(entries)]]
    return pieces[0], dict(zip([*entries, *values], [*pieces[1:], *fields[1 + len(entries) :]], strict=True))


STRATEGIES = {"two-phase": two_phase, "exchange": exchange, "whole": whole}


def per_matrix_names(kinds: Mapping[str, Kind]) -> list[str]:
    """The buffers that hold one value for each matrix."""
    return sorted(name for name, kind in kinds.items() if per_matrix(kind))


def _share(method: Method, held: Held, bucket: ShardedBucket, new_x: Tensor, new: State) -> Moves:
    """Replicas send each other what they have computed: all then hold the same bits."""
    assert bucket.replicas is not None
    values = per_matrix_names(method.rule.kinds)
    moved = [] if held.advanced else [name for name in method.rule.kinds if name not in values]
    names = [*moved, *values]
    like = [held.x, *(held.state[name] for name in names)]
    record = packed_layout(*map(_spec, like))
    first, last = bucket.share
    members = range(dist.get_world_size(bucket.replicas))
    buffer = packed([new_x, *(new.get(name, held.state[name][first:last]) for name in names)]) if last > first else None
    answer = yield AllToAll(
        {} if buffer is None else {member: [buffer] for member in members},
        {member: [(b - a) * record.size] for member, (a, b) in enumerate(bucket.shares) if b > a},
        SHARE,
    )
    new_x, *fields = record.unpack(concatenated(cast(Received, answer), bucket.device), held.x.shape[0])
    return new_x, dict(zip(names, fields, strict=True))


def _spec(tensor: Tensor) -> FieldSpec:
    return FieldSpec(tuple(tensor.shape[1:]), tensor.dtype)


def _by_columns(
    method: Method, held: Held, x: Tensor, g: Tensor
) -> Generator[Request, Answer, tuple[Update, State, Tensor]]:
    """Step columns: the update, the new state of each matrix, and which matrices are finite."""
    direction = Direction(g, known=False)
    t = _step_number(held.state, held.lr)
    steps = flatten(method.rule.method.update(x, direction, held.lr, {}, t, method.group))
    requested = next(steps)
    total = held.g.sum((-2, -1))  # is finite only if its terms are
    answer = yield AllReduce([*requested, total, *held.statistic], SUM)
    sums = cast(Sums, answer)
    total, *statistic = sums[len(requested) :]
    scale, fresh = method.scale(statistic, held.state, held.lr)
    direction.set_scale(scale)
    if scale is not None:
        total = total * scale
    sums, stage = sums[: len(requested)], SUM
    while True:
        stage += 1
        try:
            requested = steps.send(sums)
        except StopIteration as stop:
            update: Update = stop.value
            break
        answer = yield AllReduce(requested, stage)
        sums = cast(Sums, answer)
    probe = update.finiteness_probe
    if probe is None:
        answer = yield AllReduce([update.x.sum((-2, -1))], stage)
        (probe,) = cast(Sums, answer)
    finite = torch.isfinite(total + probe)
    counts = {name: held.state[name] + more for name, more in update.counts(finite).items()}
    return update, {**fresh, **counts}, finite


def _mask(held: Held, new: State, finite: Tensor) -> State:
    """What is new where it is finite, else what is held."""
    return {name: where(finite, value, held.state[name]) for name, value in new.items()}


def _step_number(state: State, lr: Tensor) -> Tensor:
    """The number of this step of each matrix, from 1."""
    return (state["num_updates"] + 1).to(lr.dtype)


def _step_blocks(
    step: BlockStep,
    x: Tensor,
    g: Tensor,
    state: State,
    lr: Tensor,
    scaled: tuple[Tensor | None, State] | None,
) -> tuple[Tensor, State]:
    """The step of whole matrices, in blocks that fit the cache.

    Args:
        step: what steps a block.
        x: the matrices.
        g: their gradient; or the direction up to its factor, where ``scaled`` is given.
        state: their state.
        lr: learning rate.
        scaled: what :meth:`Method.scale` returns.
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
