"""Ranks compare what they were given before any data moves: where they differ, all raise the same error.

A digest of the description is compared, by one small all-reduce for each dim of the mesh, or by a few bytes that go
with the matrices; the descriptions themselves travel only when digests differ. That is done when an optimizer is
built, when a group is added, when a state is loaded, and before the matrices that are cut are stepped: a learning rate
that differs between ranks is an error on all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from orthoptim.distributed.collectives import (
    ALIGNMENT,
    OUT,
    AllToAll,
    Answer,
    Request,
    Starts,
    all_to_all_coalesced,
)
from orthoptim.engine.naming import names_of
from orthoptim.engine.rule import UpdateRule
from orthoptim.tensors import has_values, is_dtensor
from orthoptim.views import View

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Description = Mapping[str, str]
"""What must be the same on all ranks: a value for each name, both to be read by people."""

_MISSING = "not there"


def agree(params: Iterable[Any], described: Description, error: Exception | None = None) -> None:
    """Raise on all ranks if one has an error, or if they describe what they were given in different ways.

    Args:
        params: parameters; the ranks of the meshes of those that are DTensors take part.
        described: what they and their options are.
        error: what is wrong on this rank.
    """
    for peers in map(peers_of, meshes(params)):
        if not Comparison(peers, _digest([*described.items(), error is None, str(error)])).same():
            answers = from_all(peers, (dict(described), None if error is None else str(error)))
            for rank, (_, message) in answers.items():
                if message is not None:
                    raise ValueError(f"{message} (on rank {rank})") from error
            raise ValueError(difference({rank: names for rank, (names, _) in answers.items()}))
    if error is not None:
        raise error


def describe(groups: Sequence[Mapping[str, Any]], first: int = 0) -> dict[str, str]:
    """Param groups, as far as they must be the same on all ranks. The first of them is group ``first``."""
    described = {"the number of param groups": str(first + len(groups))}
    for index, group in enumerate(groups, first):
        for key, value in group.items():
            if key not in ("params", "param_names"):
                described[f"{key!r} of group {index}"] = text(value)
        for name, param in zip(names_of(group), group["params"], strict=True):
            shape = "×".join(map(str, param.shape)) or "scalar"
            placed = f"placed {param.placements}" if is_dtensor(param) else "not sharded"
            frozen = "" if param.requires_grad else ", frozen"
            described[f"parameter {name!r} of group {index}"] = f"{shape}, {param.dtype}, {placed}{frozen}"
    return described


def text(value: Any) -> str:
    """A value in words that are the same in every process: no addresses."""
    if isinstance(value, Tensor):
        if value.numel() == 1 and has_values(value):
            return f"tensor({value.item()!r})"
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(text, value))})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {text(each)}" for key, each in value.items()) + "}"
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype | torch.device | View):
        return repr(value)
    return f"a {type(value).__qualname__}"


def difference(answers: Mapping[int, Description]) -> str:
    """Say what differs first between the descriptions of ranks, and on which."""
    for name in dict.fromkeys(name for described in answers.values() for name in described):
        values: dict[str, list[int]] = {}
        for rank, described in answers.items():
            values.setdefault(described.get(name, _MISSING), []).append(rank)
        if len(values) > 1:
            told = [f"{value} on rank {', '.join(map(str, ranks))}" for value, ranks in values.items()]
            return f"ranks disagree: {name} is {' and '.join(told)}; it must be the same on all"
    return f"ranks {', '.join(map(str, answers))} disagree about the plan of this step"


class StepCheck:
    """The comparison before a step: gradients, learning rates and options that may change.

    It is started before the first matrices are packed and finished before they are sent. On an accelerator nothing
    waits for its result: that is looked at before the next step, when the step in question has been taken.

    Where all matrices go to owners of one group, on a CPU, the digest goes with them, :meth:`travel`: that spares a
    collective, and nothing has been written when it is read.

    Attributes:
        sizes: by member, the bytes that go and come with the digest; None: by this plan nothing has gone so far.
    """

    def __init__(self) -> None:
        self.sizes: tuple[dict[int, int], dict[int, int]] | None = None
        self._header = torch.zeros(2, dtype=torch.int64)
        self._peers: Sequence[Peers] = ()
        self._comparisons: list[Comparison] = []
        self._deferred: list[tuple[Comparison, Callable[[], dict[str, str]]]] = []
        self._describe: Callable[[], dict[str, str]] = dict

    def start(
        self,
        ranks: Sequence[Peers],
        rules: Sequence[UpdateRule],
        params: Sequence[tuple[str, Tensor]],
        settings: Mapping[str, str],
        changed: bool,
        written: bool,
    ) -> None:
        """Start to compare.

        Args:
            ranks: those that share matrices.
            rules: those of the constrained groups.
            params: all parameters that ranks share, and what to call them.
            settings: those of the optimizer that are not of a group.
            changed: whether this rank is about to make a new plan.
            written: whether somebody may have written to matrices of this rank since the last step.
        """
        if not ranks:
            return
        flags = [(param.grad is not None, param.requires_grad) for _, param in params]
        options = [dict(settings), *map(_options, rules)]
        rates = [lr for rule in rules if isinstance(lr := rule.group["lr"], Tensor) and lr.device.type != "cpu"]

        def description() -> dict[str, str]:
            described = {name: value for named in options for name, value in named.items()}
            described |= {f"'lr' of group {rule.index}": text(rule.group["lr"]) for rule in rules}
            for (label, _), (present, trained) in zip(params, flags, strict=True):
                described[f"the gradient of {label}"] = "there" if present else "missing"
                described[f"requires_grad of {label}"] = str(trained)
            return described

        self._describe = description
        digest = _digest([options, flags, changed])
        if self.sizes is None:
            self._comparisons = [Comparison(peers, digest, rates, written) for peers in ranks]
        self._peers, self._header = ranks, torch.tensor([written, digest])

    def travel(self) -> Generator[Request, Answer, bool]:
        """The coroutine that compares while the first matrices go to their owners; returns what :meth:`finish` does."""
        sizes = dict.fromkeys(range(dist.get_world_size(self._peers[0].groups[0])), ALIGNMENT)
        return self._read((yield self._exchange(sizes, sizes)))

    def _exchange(self, send: dict[int, int], expect: dict[int, int]) -> AllToAll:
        """The header, as the first bytes for every member of the group."""
        going: dict[int, int] = {}

        def pack(buffer: Tensor, starts: Starts) -> None:
            going.update(_spans(buffer, starts))
            for header in _headers(buffer, starts):
                header.copy_(self._header)

        def unpack(buffer: Tensor, starts: Starts) -> Answer:
            self.sizes = (going, _spans(buffer, starts))
            return [torch.stack(_headers(buffer, starts))]

        return AllToAll(send, expect, pack, unpack, OUT)

    def _read(self, headers: Answer) -> bool:
        """Raise where the headers differ; return whether one has its flag set."""
        flags, digests = zip(*headers[0].tolist(), strict=True)
        if len(set(digests)) > 1:
            raise RuntimeError(difference(from_all(self._peers[0], self._describe())))
        return any(flags)

    def finish(self) -> bool:
        """Raise on all ranks where they differ; on an accelerator, before the next step.

        Returns:
            Whether matrices may have been written to on some rank: the same on all; True where nobody has looked.
        """
        if self.sizes is not None:  # others may send this rank their matrices: it sends as many bytes
            (group,), device = self._peers[0]
            return self._read(all_to_all_coalesced([self._exchange(*self.sizes)], group, device)()[0])
        comparisons, self._comparisons = self._comparisons, []
        written = not comparisons
        for comparison in comparisons:
            comparison.finish()
            if comparison.peers.device.type == "cpu":
                _raise_if_different(comparison, self._describe)
                written |= comparison.flag()
            else:
                written = True
                self._deferred.append((comparison, self._describe))
        return written

    def raise_deferred(self) -> None:
        """Raise what the last step has found."""
        deferred, self._deferred = self._deferred, []
        for comparison, described in deferred:
            _raise_if_different(comparison, described)


def _headers(buffer: Tensor, starts: Starts) -> list[Tensor]:
    return [buffer[start : start + ALIGNMENT].view(torch.int64) for start in starts.values()]


def _spans(buffer: Tensor, starts: Starts) -> dict[int, int]:
    """How many bytes of a buffer each member has, from where they begin."""
    ends = [*list(starts.values())[1:], buffer.numel()]
    return {member: end - start for (member, start), end in zip(starts.items(), ends, strict=True)}


def _options(rule: UpdateRule) -> dict[str, str]:
    """The options of a group that are known to this process without waiting for a device."""
    return {
        f"{key!r} of group {rule.index}": text(value)
        for key, value in rule.group.items()
        if key not in ("params", "param_names") and not (isinstance(value, Tensor) and value.device.type != "cpu")
    }


def _raise_if_different(comparison: Comparison, described: Callable[[], dict[str, str]]) -> None:
    if not comparison.same():
        raise RuntimeError(difference(from_all(comparison.peers, described())))


class Peers(NamedTuple):
    """Ranks that work together: the group of this rank along each dim of their mesh, and the device they speak from."""

    groups: tuple[dist.ProcessGroup, ...]
    device: torch.device


def peers_of(mesh: DeviceMesh) -> Peers:
    """The ranks of a mesh, as far as somebody else is there and can be spoken to."""
    device = torch.device(mesh.device_type)
    groups = [mesh.get_group(dim) for dim in range(mesh.ndim) if mesh.size(dim) > 1]
    return Peers(tuple(group for group in groups if device in group._device_types), device)


class Comparison:
    """Whether a number is the same on all ranks: its maximum is compared with its minimum.

    Args:
        peers: the ranks.
        number: the number, of 63 bits.
        rates: learning rates on a device, which take part.
        flag: whether something is so on this rank; :meth:`flag` tells whether it is on some rank.
    """

    def __init__(self, peers: Peers, number: int, rates: Sequence[Tensor] = (), flag: bool = False) -> None:
        self.peers = peers
        self._both = torch.tensor([flag, number, -number], device=peers.device)
        for lr in rates:
            bits = lr.detach().reshape(1).to(peers.device, torch.float64).view(torch.int64)
            self._both = torch.cat([self._both, bits, -bits])
        self._groups = iter(peers.groups)
        self._work: dist.Work | None = None
        self._seen: torch.Event | None = None
        self._launch()

    def _launch(self) -> None:
        group = next(self._groups, None)
        reduce = dist.ReduceOp.MAX
        self._work = None if group is None else dist.all_reduce(self._both, reduce, group=group, async_op=True)

    def finish(self) -> None:
        """Go along all dims of the mesh. On an accelerator that queues work and waits for none."""
        while self._work is not None:
            self._work.wait()
            self._launch()
        if self.peers.device.type != "cpu" and self._seen is None:
            self._both = self._both.to("cpu", non_blocking=True)
            self._seen = torch.Event(self.peers.device)
            self._seen.record()

    def same(self) -> bool:
        """Whether it is."""
        self.finish()
        if self._seen is not None:
            self._seen.synchronize()
        _, *numbers = self._both.tolist()
        return all(largest == -negated for largest, negated in zip(numbers[::2], numbers[1::2], strict=True))

    def flag(self) -> bool:
        """Whether the flag is set on some rank."""
        return bool(self._both[0])


def _digest(value: Any) -> int:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def find_dtensors(params: Any) -> list[Tensor]:
    """The DTensors in what an optimizer was given, as far as they can be seen without using up an iterator."""
    if isinstance(params, Tensor):
        return [params] if is_dtensor(params) else []
    if isinstance(params, Mapping):
        return find_dtensors(params.get("params", ()))
    if isinstance(params, list | tuple):
        return [tensor for item in params for tensor in find_dtensors(item)]
    return []


def meshes(params: Iterable[Any]) -> list[DeviceMesh]:
    """The meshes of those parameters that are DTensors, as far as this rank is part of them."""
    found: dict[int, DeviceMesh] = {}
    for param in params:
        if is_dtensor(param):
            found.setdefault(id(param.device_mesh), param.device_mesh)
    distinct: list[DeviceMesh] = []
    for mesh in found.values():
        if mesh not in distinct and mesh.get_coordinate() is not None:
            distinct.append(mesh)
    return distinct


def from_all(peers: Peers, value: Any) -> dict[int, Any]:
    """The values of all ranks, by global rank."""
    found = {dist.get_rank(): value}
    for group in peers.groups:
        everyone: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyone, found, group=group)
        for part in everyone:
            found.update(part)
    return dict(sorted(found.items()))
