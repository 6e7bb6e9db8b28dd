"""How the matrices of a bucket are stepped over ranks: chosen by how they are cut and by their shape alone.

| cut | strategy | collectives of a step |
|---|---|---|
| not at all: replicated, or split over the batch | ``local`` | none |
| near-square, n/p < 2w; or the method or its base needs whole matrices | ``whole`` | 2 all-to-all |
| the long side | ``two-phase`` | 2 all-reduce |
| the short side | ``exchange``: to a cut of the long side, two-phase, and back | 2 all-to-all, 2 all-reduce |
| both sides | ``whole`` | 2 all-to-all |
| between the matrices of one parameter, of several sizes | ``whole``, owned where they are | 2 all-to-all of numbers |

``whole`` sends 3pn/w numbers per matrix and rank (X and G to an owner, X⁺ back; 2pn/w where the owner has kept X, see
:class:`Kept`); ``two-phase`` all-reduces XXᴴ and XGᴴ, then RRᴴ, which sends 6p², whatever n is: less from n/p = 2w on.
``exchange`` sends the sum of both, never less than ``whole`` on average, and from there on at most twice as much; but
all ranks share in every matrix, where few owners would have much to do while the others wait. Cuts in strides, as of
FSDP2 over tensor parallelism, are cuts like any other: sums do not ask for the order of columns, and owners put it
right. Replicas (HSDP) each step a share of the matrices, and send the others what is new: one more all-to-all.

A base optimizer that needs no whole matrices advances on pieces: entry by entry it makes G up to a factor of each
matrix, and from the sum of its statistic over all pieces the factor. So momentum stays where it is, and only X and G
are moved. For other bases the gradient and the state are moved.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.base import Direction, State
from orthoptim.distributed.buckets import ShardedBucket, from_owners, share, to_owners
from orthoptim.distributed.collectives import (
    BACK,
    MORE,
    OUT,
    SUM,
    AllReduce,
    AllToAll,
    Answer,
    Request,
    pack_pieces,
    piece_sizes,
    unpack_pieces,
)
from orthoptim.distributed.layout import Layout
from orthoptim.engine.rule import UpdateRule
from orthoptim.engine.step import BlockStep, counts, step_number
from orthoptim.stiefel import Update, can_look, flatten
from orthoptim.stiefel.batches import where


def choose(layout: Layout, by_columns: bool) -> str:
    """The strategy of a bucket.

    Args:
        layout: how its matrices are cut.
        by_columns: whether method and base can step some of the columns, knowing sums over all of them.
    """
    sides, p, n, world = layout.cut, layout.p, layout.n, len(layout.ranks)
    if sides == "none":
        return "local"
    if sides == "both" or not by_columns or n < 2 * p * world or layout.holder is not None:
        return "whole"
    return "two-phase" if sides == "columns" else "exchange"


Result = tuple[Tensor, State]  # new X, and new state of the pieces and of the matrices; the old, where not finite
Moves = Generator[Request, Answer, Result]


@dataclass
class Kept:
    """What a rank keeps of a bucket after a step, so that X need not be sent to its owner again in the next.

    Attributes:
        pieces: the pieces (B, rows, columns) that it wrote; None: X must be sent.
        owned: the matrices that it owns, as the parameters hold them.
    """

    pieces: Tensor | None = None
    owned: Tensor | None = None
    _views: list[Tensor] = field(default_factory=list)
    _addresses: list[int] = field(default_factory=list)

    def are_same(self, params: list[Tensor], bucket: ShardedBucket) -> bool:
        """Whether the parameters of a bucket, local tensors, hold these pieces."""
        if self.pieces is None:
            return False
        addresses = list(map(Tensor.data_ptr, params))
        if addresses != self._addresses:
            self._views = list(map(_wide, params)) if all(map(_fills_memory, params)) else []
            self._addresses = addresses
        if not self._views:
            return all(map(torch.equal, params, bucket.split(params, self.pieces)))
        return all(map(torch.equal, self._views, _wide(bucket.turn(self.pieces)).view(len(params), -1).unbind(0)))


def _fills_memory(a: Tensor) -> bool:
    """Whether a tensor is so many bytes, one after another, that it can be seen as integers of 8."""
    return a.is_contiguous() and a.nbytes % 8 == 0 and a.storage_offset() * a.itemsize % 8 == 0


def _wide(a: Tensor) -> Tensor:
    """The entries as integers of 8 bytes, bit for bit: to compare these takes half the time."""
    return a.reshape(-1).view(torch.int64)


class Pieces(NamedTuple):
    """What a rank holds of a bucket.

    Attributes:
        x: pieces (B, rows, columns) of the matrices.
        g: those of the gradient; or of the direction, up to a factor of each matrix, where the base has advanced.
        state: of the pieces and of the matrices.
        statistic: that of the base for each of the pieces; none or one.
        lr: learning rate.
        advanced: whether the base has advanced.
        kept: what is kept from step to step; None: nothing is.
    """

    x: Tensor
    g: Tensor
    state: State
    statistic: list[Tensor]
    lr: Tensor
    advanced: bool
    kept: Kept | None = None

    def part(self, first: int, last: int) -> Pieces:
        """The same of some of the matrices."""
        if (first, last) == (0, self.x.shape[0]):
            return self
        state = {name: value[first:last] for name, value in self.state.items()}
        statistic = [each[first:last] for each in self.statistic]
        return self._replace(x=self.x[first:last], g=self.g[first:last], state=state, statistic=statistic)


def step_bucket(
    rule: UpdateRule, bucket: ShardedBucket, x: Tensor, grad: Tensor, state: State, lr: Tensor, kept: Kept | None = None
) -> Moves:
    """The coroutine that steps the pieces of a bucket: direction, update by its strategy, mask.

    Args:
        rule: the method and the options of its group.
        bucket: the bucket.
        x: pieces (B, rows, columns) of the matrices.
        grad: those of the gradient.
        state: those of the state, and values of the matrices (B,).
        lr: learning rate.
        kept: what is kept from step to step.
    """
    advanced: State = {}
    pieces = Pieces(x, grad, state, [], lr, not rule.needs_whole, kept)
    if not rule.needs_whole:
        ascent = -grad if rule.group["maximize"] else grad
        statistic = rule.base.statistic(ascent)
        t = step_number(state["num_updates"], lr)[:, None, None]
        g, advanced = rule.base.advance(ascent, state, t, **rule.hyperparameters)
        pieces = pieces._replace(g=g, statistic=[] if statistic is None else [statistic])
    first, last = bucket.share
    new_x, new = x[:0], State()
    if last > first:
        new_x, new = yield from STRATEGIES[bucket.strategy](rule, pieces.part(first, last), bucket)
    if bucket.replicas is not None:
        new_x, new = yield from _share(rule, pieces, bucket, new_x, new)
    if advanced:
        finite = new["num_updates"] != state["num_updates"]
        if not (can_look(finite) and bool(finite.all())):
            advanced = {name: where(finite, value, state[name]) for name, value in advanced.items()}
        new |= advanced
    return new_x, new


def two_phase(rule: UpdateRule, pieces: Pieces, bucket: ShardedBucket) -> Moves:
    """The long side is cut: sums over pieces take the place of products over n."""
    update, new, finite = yield from _by_columns(rule, pieces, bucket, pieces.x, pieces.g)
    return where(finite, update.x, pieces.x), _mask(pieces, new, finite)


def exchange(rule: UpdateRule, pieces: Pieces, bucket: ShardedBucket) -> Moves:
    """The short side is cut: columns for rows, two phases, and back."""
    by_columns, by_rows, count = bucket.layout.piece_by_columns, bucket.layout.columns_by_rows, pieces.x.shape[0]

    def move(source: Layout, target: Layout, fields: list[Tensor], stage: int) -> AllToAll:
        send, expect = piece_sizes(source, fields, count), piece_sizes(target, fields, count)
        unpack = partial(unpack_pieces, target, fields, count)
        return AllToAll(send, expect, partial(pack_pieces, source, fields), unpack, stage)

    x, g = yield move(by_columns, by_rows, [pieces.x, bucket.compressed(pieces.g)], OUT)
    update, new, finite = yield from _by_columns(rule, pieces, bucket, x, g.to(x.dtype))
    (new_x,) = yield move(by_rows, by_columns, [update.x], BACK)
    return where(finite, new_x, pieces.x), _mask(pieces, new, finite)


def whole(rule: UpdateRule, pieces: Pieces, bucket: ShardedBucket) -> Moves:
    """Each matrix is sent to one rank, which steps it as a single process would, and sends it back."""
    turn, values, entries = bucket.turn, rule.matrix_values, rule.matrix_entries
    first, last = bucket.owners[bucket.layout.me]
    # copies: to step a block may write to its state
    state = {name: pieces.state[name][first:last].clone() for name in values}
    matrices, kept = 1 + len(entries), pieces.kept

    def compute(fields: list[Tensor]) -> list[Tensor]:
        x, g, *buffers = map(turn, fields[: 1 + matrices])
        state.update(zip(entries, buffers, strict=True))
        assembled = pieces._replace(x=x, g=g.to(x.dtype), state=state, statistic=fields[1 + matrices :])
        fields.clear()  # on the way back nobody needs them
        new_x, new = _step_whole(rule, assembled, bucket)
        stored, sent = turn(new_x), turn(x)
        if kept is not None:
            # Laid out as what is sent: products of matrices that lie otherwise round otherwise. Not in the memory of X,
            # which may be among the new state.
            same = stored.stride() == sent.stride()
            stored = kept.owned = stored if same else torch.empty_like(sent).copy_(stored)
        back = [stored, *(turn(new[name]) for name in entries)]
        return [*back, *(new[name] if name in new else state[name] for name in values)]

    buffers = [turn(pieces.state[name]) for name in entries]
    like = [turn(pieces.x), *buffers, *(pieces.state[name] for name in values)]
    sent = [turn(bucket.compressed(pieces.g)), *buffers, *pieces.statistic]
    if kept is None:
        fields = yield from to_owners(bucket, [turn(pieces.x), *sent])
    else:
        fields = yield from to_owners(bucket, sent)
        if kept.pieces is None:  # on all ranks, which have been told by now
            (kept.owned,) = yield from to_owners(bucket, [turn(pieces.x)], MORE)
        assert kept.owned is not None
        fields = [kept.owned, *fields]
    fields = yield from from_owners(bucket, compute(fields), like)
    new_x, *buffers = map(turn, fields[:matrices])
    return new_x, dict(zip([*entries, *values], [*buffers, *fields[matrices:]], strict=True))


def local(rule: UpdateRule, pieces: Pieces, bucket: ShardedBucket) -> Moves:
    """The matrices are whole on every replica, which steps its share of them."""
    yield from ()
    copies = {name: value.clone() for name, value in pieces.state.items()}  # to step a block may write to its state
    new_x, new = _step_whole(rule, pieces._replace(state=copies), bucket)
    return new_x, copies | new


STRATEGIES = {"two-phase": two_phase, "exchange": exchange, "whole": whole, "local": local}


def _share(rule: UpdateRule, pieces: Pieces, bucket: ShardedBucket, new_x: Tensor, new: State) -> Moves:
    """Replicas send each other what they have computed."""
    names = [*rule.matrix_entries, *rule.matrix_values]
    first, last = bucket.share
    like = [pieces.x, *(pieces.state[name] for name in names)]
    fields = [new_x, *(new.get(name, pieces.state[name][first:last]) for name in names)]
    new_x, *buffers = yield from share(bucket, fields, like)
    return new_x, dict(zip(names, buffers, strict=True))


def _by_columns(
    rule: UpdateRule, pieces: Pieces, bucket: ShardedBucket, x: Tensor, g: Tensor
) -> Generator[Request, Answer, tuple[Update, State, Tensor]]:
    """Step columns: the update, the new state of each matrix, and which matrices are finite."""
    direction = Direction(g, normalized=rule.base.normalized, known=False)
    t = step_number(pieces.state["num_updates"], pieces.lr)
    steps = flatten(rule.method.update(x, direction, pieces.lr, {}, t, {**rule.group, "form": bucket.form}))
    requested = next(steps)
    total = pieces.g.sum((-2, -1))  # is finite only if its terms are
    sums = yield AllReduce([*requested, total, *pieces.statistic], SUM)
    total, *statistic = sums[len(requested) :]
    scale, fresh = _scale(rule, statistic, pieces)
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
        sums = yield AllReduce(requested, stage)
    probe = update.finiteness_probe
    if probe is None:
        (probe,) = yield AllReduce([update.x.sum((-2, -1))], stage)
    finite = torch.isfinite(total + probe)
    counted = {name: pieces.state[name] + more for name, more in counts(update, finite).items()}
    return update, {**fresh, **counted}, finite


def _scale(rule: UpdateRule, statistic: list[Tensor], pieces: Pieces) -> tuple[Tensor | None, State]:
    """The factor of the direction and the base's new state of each matrix, from the statistic of all pieces."""
    t = step_number(pieces.state["num_updates"], pieces.lr)
    return rule.base.scale(statistic[0] if statistic else None, pieces.state, t, **rule.hyperparameters)


def _mask(pieces: Pieces, new: State, finite: Tensor) -> State:
    """What is new where it is finite, else what is pieces."""
    return {name: where(finite, value, pieces.state[name]) for name, value in new.items()}


def _step_whole(rule: UpdateRule, pieces: Pieces, bucket: ShardedBucket) -> Result:
    """The step of whole matrices, in blocks that fit the cache; their state may be written to."""
    x, lr = pieces.x, pieces.lr
    if x.shape[0] == 0:
        return x, pieces.state
    scale, fresh = _scale(rule, pieces.statistic, pieces) if pieces.advanced else (None, State())
    # the direction of a base that has advanced descends already
    changes = {"maximize": False} if pieces.advanced else {}
    step, size = BlockStep(rule, bucket.form, **changes), bucket.block_size
    results = []
    for start in range(0, x.shape[0], size):
        block = slice(start, start + size)
        g, state = pieces.g[block], {name: value[block] for name, value in pieces.state.items()}
        if not pieces.advanced:
            results.append(step.compute(x[block], g, state, lr))
            continue
        direction = Direction(g, None if scale is None else scale[block], rule.base.normalized)
        new = {name: value[block] for name, value in fresh.items()}
        results.append(step.descend(x[block], direction, new, state, step_number(state["num_updates"], lr), lr))
    if len(results) == 1:
        return results[0]
    new_state = {name: torch.cat([new[name] for _, new in results]) for name in results[0][1]}
    return torch.cat([new_x for new_x, _ in results]), new_state
