"""Ranks that do not agree all say so, and none is left waiting for the others."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from orthoptim.tensors import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@contextmanager
def agreement(group: Mapping[str, Any], label: str) -> Iterator[None]:
    """A context in which a param group is checked: what is wrong on one rank is raised on all that share its DTensors.

    So is a difference between ranks in what the parameters are or how they are to be stepped.
    """
    if not any(is_dtensor(param) for param in group["params"]):
        yield
        return
    error = None
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as caught:
        error = caught
    agree(group["params"], describe(group, label), error)


def describe(group: Mapping[str, Any], label: str) -> list[str]:
    """What a group is, as far as it must be the same on all ranks: a line for its options, and for each parameter."""
    options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    plain = {key: value for key, value in options.items() if not isinstance(value, Tensor)}
    names = group.get("param_names", range(len(group["params"])))
    return [
        f"has {label} with {plain}",
        *(
            f"has {label}'s parameter {name!r} of shape {tuple(param.shape)}, {param.dtype}, {_placed(param)}"
            for name, param in zip(names, group["params"], strict=True)
        ),
    ]


def _placed(param: Tensor) -> str:
    return f"placed {param.placements}" if is_dtensor(param) else "not sharded"


def from_all(mesh: "DeviceMesh", value: Any) -> dict[int, Any]:
    """The values of all ranks of a mesh, by global rank."""
    found = {dist.get_rank(): value}
    for dim in range(mesh.ndim):
        group = mesh.get_group(dim)
        if dist.get_world_size(group) == 1 or dist.get_backend(group) == "fake":
            continue
        everyone: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyone, found, group=group)
        for part in everyone:
            found.update(part)
    return dict(sorted(found.items()))


def meshes(params: Sequence[Any]) -> "list[DeviceMesh]":
    """The meshes of those parameters that are DTensors."""
    found: list[DeviceMesh] = []
    for param in params:
        if is_dtensor(param) and param.device_mesh not in found:
            found.append(param.device_mesh)
    return found


def agree(params: Sequence[Any], described: Sequence[str], error: Exception | None) -> None:
    """Raise on all ranks if one has an error, or if they describe what they have been given in different ways.

    Args:
        params: parameters; the ranks of their meshes take part.
        described: what they and their options are, a line for each.
        error: what is wrong on this rank.
    """
    for mesh in meshes(params):
        answers = from_all(mesh, (list(described), None if error is None else str(error)))
        messages = {rank: message for rank, (_, message) in answers.items() if message is not None}
        if error is not None and len(messages) == len(answers) and len(set(messages.values())) == 1:
            raise error
        for rank, message in messages.items():
            raise ValueError(f"{message} (on rank {rank})") from error
        first = next(iter(answers))
        for rank, (lines, _) in answers.items():
            for ours, theirs in padded_pairs(answers[first][0], lines):
                if ours != theirs:
                    raise ValueError(
                        f"ranks were given different parameters: rank {first} {ours}, rank {rank} {theirs}"
                    )
    if error is not None:
        raise error


def padded_pairs(ours: list[str], theirs: list[str]) -> list[tuple[str, str]]:
    """Pairs of lines, where one list may be shorter."""
    nothing = "has no more"
    length = max(len(ours), len(theirs))
    pad = [[*lines, *[nothing] * (length - len(lines))] for lines in (ours, theirs)]
    return list(zip(*pad, strict=True))


def missing_gradient(names: Sequence[str], present: Sequence[bool], group: "dist.ProcessGroup") -> str:
    """Say which parameter has a gradient on some ranks of a group only. All of them must call."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, list(present), group=group)
    ranks = dist.get_process_group_ranks(group)
    for i, name in enumerate(names):
        have = [rank for rank, flags in zip(ranks, everyone, strict=True) if flags[i]]
        if 0 < len(have) < len(ranks):
            lack = [rank for rank in ranks if rank not in have]
            return (
                f"{name} has a gradient on rank {_listed(have)} but none on rank {_listed(lack)}: parameters that are "
                "sharded together must all have one, or none"
            )
    return f"ranks {_listed(ranks)} disagree about which parameters have a gradient"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
