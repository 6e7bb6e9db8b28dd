"""What a sequence starts from: an optimizer and its groups, as values that print as Python."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim.views import View
from tests.fuzz.gradients import LAYOUTS

METHODS: dict[str, type[oo.Orthoptimizer]] = {
    method.algorithm: method for method in (oo.POGO, oo.RGD, oo.RSDM, oo.Landing, oo.LandingPC, oo.SLPG, oo.StiefelMuon)
}

BASES: dict[str, oo.Base] = {
    "sgd": oo.SGD(),
    "sgd-momentum": oo.SGD(momentum=0.9),
    "sgd-dampening": oo.SGD(momentum=0.5, dampening=0.3),
    "sgd-nesterov": oo.SGD(momentum=0.9, nesterov=True),
    "vadam": oo.VAdam(),
    "vadam-no-eps": oo.VAdam(betas=(0.5, 0.9), eps=0.0),
    "adam": oo.Adam(),
    "muon": oo.Muon(),
    "bb": oo.BB(),
    "cg": oo.CG(),
    "lbfgs": oo.LBFGS(history_size=2),
}


class Group(NamedTuple):
    """A param group.

    Attributes:
        shapes: those of its parameters.
        lr: the learning rate.
        base: a key of ``BASES``; of an ordinary group, ``"adamw"`` or ``"sgd"``.
        dtype: a name that torch knows.
        layouts: how its parameters lie in memory, in turn.
        tensor_lr: whether the learning rate is a tensor.
        identity: whether its matrices start at the identity, where sums are exact; else at random points.
        ordinary: whether its parameters are not constrained.
        options: those of the method, with view and side.
    """

    shapes: tuple[tuple[int, ...], ...]
    lr: float = 0.1
    base: str = "sgd"
    dtype: str = "float32"
    layouts: tuple[str, ...] = ("plain",)
    tensor_lr: bool = False
    identity: bool = False
    ordinary: bool = False
    options: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple default; never changed)


class Start(NamedTuple):
    """An optimizer: its method, its groups, and the seed of their parameters."""

    method: str
    groups: tuple[Group, ...]
    seed: int = 0


def learning_rate(lr: float, tensor: bool) -> float | Tensor:
    """A number, or a tensor of it."""
    return torch.tensor(lr) if tensor else lr


def new_params(group: Group, generator: torch.Generator) -> list[torch.nn.Parameter]:
    """Parameters on the manifold, or Gaussian ones of an ordinary group."""
    params = []
    for index, shape in enumerate(group.shapes):
        value = torch.empty(shape, dtype=getattr(torch, group.dtype))
        if group.ordinary:
            value.normal_(generator=generator)
        else:
            where = {key: group.options[key] for key in ("view", "side") if key in group.options}
            oo.orthogonalize_(value, init="random", generator=generator, **where)
            if group.identity:
                value = _identity(value, **where)
        params.append(torch.nn.Parameter(LAYOUTS[group.layouts[index % len(group.layouts)]](value)))
    return params


def _identity(value: Tensor, view: str = "matrix", side: str = "auto") -> Tensor:
    parts = View.of(view).parts(value.shape, side)
    eyes = [torch.eye(p, n, dtype=value.dtype).expand(*batch, p, n) for batch, p, n, *_ in parts]
    return View.of(view).from_matrices(eyes, value.shape, side).clone(memory_format=torch.contiguous_format)


def group_dict(group: Group, params: list[torch.nn.Parameter]) -> dict[str, Any]:
    """What ``add_param_group`` takes."""
    plain = {"params": params, "lr": learning_rate(group.lr, group.tensor_lr)}
    if group.ordinary:
        return {**plain, "algorithm": group.base}
    return {**plain, "base": BASES[group.base], **group.options}


def build(method: str, groups: list[Group], params: list[list[torch.nn.Parameter]]) -> oo.Orthoptimizer:
    """The optimizer of these groups and parameters."""
    dicts = [group_dict(group, members) for group, members in zip(groups, params, strict=True)]
    first = next((each for each in dicts if "r" in each), {})
    needed = {"r": first.get("r", 1)} if method == "rsdm" else {}
    with warnings.catch_warnings():  # a restart finds matrices where the last step left them
        warnings.filterwarnings("ignore", "parameter .* was not orthonormal")
        return METHODS[method](dicts, lr=0.1, **needed)
