"""What the machine expects of an optimizer, and the checks after each step."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim.views import View
from tests.fuzz.promises import Promise, distances, matrices_of, promise_of, rounding, wide
from tests.fuzz.run import Run, Snapshot, difference, pieces

TAKEN = "num_updates"
_SQUARES_OVERFLOW = 1e18
_RETRACTABLE = 100
_OVERFLOWS = 1e35  # lr·|g|
_LONG_LEAP = 1e12  # lr·|g| from which squares of squares leave the range of float32


class Violation(AssertionError):
    """A broken promise.

    Args:
        rule: which one.
        what: what was seen.
    """

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


@dataclass
class Record:
    """What the machine knows by itself about one parameter; the tensors have one entry for each matrix."""

    steps: int
    taken: Tensor
    kept: Tensor  # whether it started on the manifold and was not written to since
    scaled: Tensor  # whether it was scaled by the user and has not come back yet
    start: Tensor  # its distance where it started
    updates: Tensor  # since then
    loudest: Tensor  # the largest entry of its gradients so far


class Expectations:
    """An optimizer, copies of it that must not differ from it, and what is known of each of its parameters.

    Args:
        main: the optimizer.
    """

    def __init__(self, main: Run) -> None:
        self.main = main
        self.twins: list[Run] = []
        self.records: list[Record | None] = []
        self.references: list[tuple[int, torch.optim.Optimizer]] = []
        for index in range(len(main.opt.param_groups)):
            self._begin_group(index)

    def _check_steps(self, place: int, good: Tensor, before: Snapshot) -> None:
        """The counters, and that a matrix that was not stepped is as it was."""
        record = self._record(place)
        param, group = self._member(place)
        state, promise = self.main.opt.state[param], promise_of(self.main.method, group)
        record.steps += 1
        g = wide(matrices_of(param.grad, group)).abs().flatten(1).amax(1)
        record.loudest = torch.where(good, torch.maximum(record.loudest, g), record.loudest)
        if int(state["step"]) != record.steps:
            raise Violation("counters", f"step of parameter {place} is {int(state['step'])}, not {record.steps}")
        taken = state[TAKEN].reshape(-1)
        stepped = taken - record.taken
        if not ((stepped == 0) | (stepped == 1)).all():
            raise Violation("counters", f"{TAKEN} of parameter {place} changed by {stepped.tolist()} in one step")
        if (stepped.bool() & ~good).any():
            raise Violation("counters", f"parameter {place}: a step along a gradient that is not finite was counted")
        declined = ~stepped.bool() & good & ~self._may_decline(place, promise, before)
        if declined.any():
            raise Violation("counters", f"parameter {place}: a finite gradient was skipped, {declined.tolist()}")
        record.taken = taken.clone()
        record.updates += stepped
        self._check_unchanged(place, stepped == 0, before)
        for name in ("clipped", "rescued"):
            if name in state and (state[name].reshape(-1) > record.steps).any():
                raise Violation("counters", f"{name} of parameter {place} is {state[name].tolist()}")

    def _may_decline(self, place: int, promise: Promise | None, before: Snapshot) -> Tensor:
        """Which matrices may keep their value although their gradient is finite: results may leave the range."""
        record = self._record(place)
        _, group = self._member(place)
        if promise is not None and promise.always_steps:
            # the form for p ≪ n squares VAdam's average
            return ~record.kept | ((record.loudest > _SQUARES_OVERFLOW) & (group["base"] == "vadam"))
        leap = float(group["lr"]) * record.loudest.clamp_min(1)
        any_length = oo.Base.named(group["base"]).default_landing is not None or group.get("barzilai_borwein", False)
        if promise is not None and not any_length:
            # X − ηD of one long direction has no full rank in its precision, and no retraction: Cholesky squares it
            longest = {"rgd": _RETRACTABLE, "landingpc": _OVERFLOWS}.get(group["algorithm"], _LONG_LEAP)
            return ~record.kept | (leap > longest)
        value, state = before[place]
        far = distances(matrices_of(state.get("master", value), group)) > 0.1
        return ~record.kept | far | (leap > 0.01) | torch.tensor(any_length)

    def _check_unchanged(self, place: int, skipped: Tensor, before: Snapshot) -> None:
        if not skipped.any():
            return
        param, group = self._member(place)
        value, state = before[place]  # no state if it was created in this step
        old = pieces(param, state, group, value)
        new = pieces(param, self.main.opt.state[param], group, param.detach())
        for name in old.keys() - {"rescued"}:
            expected = old[name]
            if name == "master":  # somebody may have written to entries of the parameter; those of the master follow
                expected = _newest(old[""], expected)
            if not _equal_matrices(expected, new[name])[skipped].all():
                raise Violation("skipped", f"{name or 'the value'} of a skipped matrix of parameter {place} changed")

    def _check_finite(self, before: Snapshot) -> None:
        """Nothing that was finite is not finite now."""
        for place, param, _, constrained in self.main.members():
            if not constrained:
                continue
            value, state = before[place]
            now: dict[str, Tensor] = dict(self.main.opt.state[param]) if param in self.main.opt.state else {}
            for name, held in {"the value": param.detach(), **now}.items():
                was = value if name == "the value" else state.get(name)
                good = torch.isfinite(held).all()
                if not good and (was is None or torch.isfinite(was).all()):
                    raise Violation("finite", f"{name} of parameter {place} is not finite")

    def _check_drift(self) -> None:
        """What the optimizer tells is what the machine counted."""
        places: dict[int, list[int]] = {}
        for index, group in enumerate(self.main.opt.param_groups):
            first = sum(len(g["params"]) for g in self.main.opt.param_groups[:index])
            if group["algorithm"] == self.main.method:
                places[index] = list(range(first, first + len(group["params"])))
        for drift in self.main.opt.drift():
            held = [self._record(place) for place in places[drift.group]]
            skipped = sum(record.steps * len(record.taken) - int(record.taken.sum()) for record in held)
            if drift.skipped != skipped:
                raise Violation("counters", f"drift of group {drift.group} says skipped={drift.skipped}, not {skipped}")

    def _check_distance(self, place: int) -> None:
        record = self._record(place)
        param, group = self._member(place)
        promise = promise_of(self.main.method, group)
        spectral = self._distances(place, Promise(0.0))
        ((_, p, n, *_),) = View.of(group["view"]).parts(param.shape, group["side"])
        tolerance = rounding(param.dtype, p, n)
        if promise is None:
            record.kept &= spectral <= tolerance
            return
        size = self._distances(place, promise) if promise.frobenius else spectral
        slack = tolerance * p**0.5 if promise.frobenius else tolerance
        updates = record.updates.double()
        steps = 1 + updates if promise.accumulates else torch.ones_like(updates)
        # a master copy begins as rounded as its parameter; every landing but RSDM's, which has none, repairs that
        start = record.start * p**0.5
        allowed = start if promise.accumulates else torch.where(record.updates <= 1, start, 0.0)
        limit = promise.distance + slack * steps + allowed
        far = record.kept & ~(size <= limit)
        if far.any():
            at = int((size - limit)[far].argmax())
            worst, allowed = float(size[far][at]), float(limit[far][at])
            what = f"a matrix of parameter {place} is at {worst:.3g}; promised is {allowed:.3g}"
            raise Violation("bound", f"{what} (more by {worst - allowed:.2g})")
        record.scaled &= ~(size <= promise.distance + slack)
        back = ~record.kept & (spectral <= tolerance)
        record.kept |= back
        record.updates[back] = 2
        record.start[back] = 0.0

    def _check_neighbours(self, clean: Run, finite: dict[int, Tensor]) -> None:
        """Whatever has a finite gradient is where it would be without the others."""
        for (place, one, group, constrained), (_, two, _, _) in zip(self.main.members(), clean.members(), strict=True):
            if not constrained or place not in finite:
                continue
            a = pieces(one, self.main.opt.state[one], group, one.detach())
            b = pieces(two, clean.opt.state[two], group, two.detach())
            for name in a:
                if not torch.equal(a[name][finite[place]], b[name][finite[place]]):
                    label = name or "the value"
                    raise Violation("neighbours", f"{label} of parameter {place} depends on a poisoned neighbour")

    def _compare(self, twin: Run, after: str) -> None:
        found = difference(self.main.snapshot(), twin.snapshot())
        if found is not None:
            raise Violation("resume", f"a copy is not bit-identical after {after}: {found}")

    # Ordinary groups, stepped by torch itself

    def _begin_group(self, index: int) -> None:
        group = self.main.opt.param_groups[index]
        if group["algorithm"] != self.main.method:
            params = [torch.nn.Parameter(param.detach().clone()) for param in group["params"]]
            make = torch.optim.AdamW if group["algorithm"] == "adamw" else torch.optim.SGD
            self.references.append((index, make(params, lr=group["lr"])))
            self.records.extend([None] * len(params))
            return
        for param in group["params"]:
            x = matrices_of(param, group)
            count = len(x)
            self.records.append(
                Record(
                    steps=0,
                    taken=torch.zeros(count, dtype=torch.int32),
                    kept=torch.ones(count, dtype=torch.bool),
                    scaled=torch.zeros(count, dtype=torch.bool),
                    start=distances(x),
                    updates=torch.zeros(count, dtype=torch.int32),
                    loudest=torch.zeros(count, dtype=torch.float64),
                )
            )

    def _follow_lr(self) -> None:
        for index, reference in self.references:
            reference.param_groups[0]["lr"] = self.main.opt.param_groups[index]["lr"]

    def _step_references(self) -> None:
        for index, reference in self.references:
            for param, other in zip(
                self.main.opt.param_groups[index]["params"], reference.param_groups[0]["params"], strict=True
            ):
                other.grad = None if param.grad is None else param.grad.clone()
            reference.step()

    def _check_references(self) -> None:
        for index, reference in self.references:
            ours = self.main.opt.param_groups[index]["params"]
            for param, other in zip(ours, reference.param_groups[0]["params"], strict=True):
                if not torch.equal(param, other):
                    raise Violation("ordinary", f"a parameter of ordinary group {index} is not where torch puts it")

    # Helpers

    def _runs(self) -> list[Run]:
        return [self.main, *self.twins]

    def _record(self, place: int) -> Record:
        record = self.records[place]
        assert record is not None
        return record

    def _member(self, place: int) -> tuple[Tensor, dict[str, Any]]:
        return next((param, group) for index, param, group, _ in self.main.members() if index == place)

    def _distances(self, place: int, promise: Promise) -> Tensor:
        param, group = self._member(place)
        return distances(matrices_of(self._value(param, group), group), promise.frobenius)

    def _value(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """The matrices in the precision they are computed in, with what somebody has written to the parameter since."""
        master = self.main.value(param)
        if master.dtype == param.dtype:
            return param.detach()
        return _newest(param.detach(), master)

    def _recovers(self, group: dict[str, Any]) -> bool:
        promise = promise_of(self.main.method, group)
        return promise is not None and promise.recovers


def _newest(value: Tensor, master: Tensor) -> Tensor:
    """The master copy of a half-precision tensor, or its value in the entries that somebody has written to since."""
    return torch.where(master.to(value.dtype) == value, master, value.to(master.dtype))


def _equal_matrices(a: Tensor, b: Tensor) -> Tensor:
    return (a == b).reshape(len(a), -1).all(1)
