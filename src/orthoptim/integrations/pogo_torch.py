"""Checkpoints of pogo-torch, the package of the paper's authors, for :class:`orthoptim.POGO`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from orthoptim.engine.state import EntrySpec
from orthoptim.optim.pogo import POGO
from orthoptim.optim.resume import specify_entries

_OPTIONS = {"sgd": ("momentum", "dampening", "nesterov"), "vadam": ("betas", "eps")}


def convert_state_dict(state_dict: dict[str, Any], optimizer: POGO) -> dict[str, Any]:
    """The state dict of a pogo-torch optimizer, as one that ``optimizer.load_state_dict`` takes.

    Rates, momentum buffers, moments and the number of steps are taken over. The bases of pogo-torch that have the same
    formula here are its ``SGD`` and its ``VectorAdam``.

    Args:
        state_dict: what ``pogo.POGO.state_dict()`` returned. It holds a function (``flatten_fn``): load such a file
            with ``weights_only=False`` only if it is your own.
        optimizer: the optimizer to load it into, built with the same parameters in the same groups. Give it
            ``landing="half"`` for pogo-torch's ``lambda_every=-1`` and ``landing="root"`` for ``lambda_every=1``.

    Raises:
        ValueError: if the groups or the matrices do not match, or the base has no counterpart.

    Example:
        ``opt.load_state_dict(convert_state_dict(torch.load("pogo.pt", weights_only=False), opt))``
    """
    converted = optimizer.state_dict()
    saved_groups, groups = state_dict["param_groups"], converted["param_groups"]
    if [len(group["params"]) for group in saved_groups] != [len(group["params"]) for group in groups]:
        raise ValueError("the pogo-torch state dict has other param groups than the optimizer: build it with the same")
    for index, (saved, group) in enumerate(zip(saved_groups, groups, strict=True)):
        label = f"group {index} of the pogo-torch state dict"
        group.update(_options(saved, group.get("base"), label))
        live = optimizer.param_groups[index]
        for param, saved_key, key in zip(live["params"], saved["params"], group["params"], strict=True):
            if state_dict["state"].get(saved_key):
                specs = specify_entries(type(optimizer), param, {**group, "params": live["params"]})
                state = {"master": param.detach(), **state_dict["state"][saved_key]}  # half precision had no copy
                converted["state"][key] = _state(state, specs, int(saved.get("step", 0)), label)
    return converted


def _options(saved: Mapping[str, Any], base: object, label: str) -> dict[str, Any]:
    names = _OPTIONS.get(base) if isinstance(base, str) else None
    if names is None or not set(names) <= saved.keys():
        raise ValueError(
            f"{label} has no options of base {base!r}: build the optimizer with base=orthoptim.SGD(momentum=...) or "
            "orthoptim.VAdam(), whichever it was"
        )
    return {name: saved[name] for name in ("lr", *names)}


def _state(saved: Mapping[str, Tensor], specs: Mapping[str, EntrySpec], steps: int, label: str) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, spec in specs.items():
        if name in ("step", "num_updates"):
            state[name] = torch.full(spec.shape, steps, dtype=spec.dtype)
        elif name in saved:
            # the second moment of complex matrices is complex there, with no imaginary part
            value = saved[name].real if saved[name].is_complex() and not spec.dtype.is_complex else saved[name]
            if value.numel() != spec.shape.numel():
                raise ValueError(
                    f"{label} has {name!r} of shape {tuple(value.shape)}, the optimizer {tuple(spec.shape)}: give it "
                    "the view that sees the matrices of flatten_fn"
                )
            state[name] = value.reshape(spec.shape).to(spec.dtype)
        elif not spec.optional:
            state[name] = torch.zeros(spec.shape, dtype=spec.dtype)
    return state
