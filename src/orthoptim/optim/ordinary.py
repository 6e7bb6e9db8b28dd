"""Ordinary groups: parameters without a constraint, stepped by torch's own AdamW or SGD."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from orthoptim.engine.state import EntrySpec
from orthoptim.optim.options import check_names
from orthoptim.tensors import is_dtensor
from orthoptim.validation import check_bool, check_number, check_pair

# torch's defaults; `capturable` must stand in the group for torch.compile to switch it on
DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "amsgrad": False,
        "maximize": False,
        "foreach": None,
        "fused": None,
        "capturable": False,
    },
    "sgd": {
        "lr": 1e-3,
        "momentum": 0,
        "dampening": 0,
        "weight_decay": 0,
        "nesterov": False,
        "maximize": False,
        "foreach": None,
        "fused": None,
    },
}


def defaults_of(group: Mapping[str, Any], capturable: bool, known: set[str], label: str) -> dict[str, Any]:
    """All options of a new group with their defaults; raises for options that it cannot have.

    Args:
        group: what is given.
        capturable: whether the optimizer is to be captured in a CUDA graph.
        known: every option that some method or base has.
        label: the name of the group in messages.
    """
    algorithm = group["algorithm"]
    defaults = DEFAULTS[algorithm]
    check_names(set(group), set(defaults), known.union(*DEFAULTS.values()), label, f"algorithm {algorithm!r}")
    return {**defaults, "capturable": capturable} if "capturable" in defaults else defaults


# a state tensor with an entry for each of the parameter
BUFFERS = {"adamw": "exp_avg", "sgd": "momentum_buffer"}

_REFERENCE = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def check(group: Mapping[str, Any]) -> None:
    """Raise what torch.optim.AdamW or SGD raises for these hyperparameters, or would raise in the first step."""
    algorithm = group["algorithm"]
    options = {key: group[key] for key in DEFAULTS[algorithm]}
    check_pair(options.get("betas", (0, 0)))
    for name in options.keys() - {"lr", "betas"}:  # which may be tensors
        default = DEFAULTS[algorithm][name]
        if not isinstance(default, bool | None):
            check_number(name, options[name])
        elif options[name] is not default:
            check_bool(name, options[name])
    _REFERENCE[algorithm]([torch.zeros(1, requires_grad=True)], **options)


def specify(param: Tensor, group: Mapping[str, Any]) -> dict[str, EntrySpec]:
    """The entries of the state of an ordinary parameter, by name, as torch makes them."""
    buffer = EntrySpec(param.shape, param.dtype)
    optional = buffer._replace(optional=True)
    if group["algorithm"] == "sgd":
        return {"momentum_buffer": optional}  # None until the first step
    return {
        "step": EntrySpec(torch.Size(), torch.float32, step_device(param, group), counts=True),
        "exp_avg": buffer,
        "exp_avg_sq": buffer,
        "max_exp_avg_sq": buffer if group["amsgrad"] else optional,
    }


def step_device(param: Tensor, group: Mapping[str, Any]) -> torch.device:
    """Where torch counts the steps."""
    return param.device if group["capturable"] or group["fused"] else torch.device("cpu")


def init_state(
    param: Tensor, group: Mapping[str, Any], state: dict[str, Any], *, eager: bool = False
) -> list[Tensor | None]:
    """Create what is missing of the state, and return it in the order :func:`step` takes it.

    Args:
        param: the parameter.
        group: the options.
        state: its state.
        eager: whether all of it must be there before the first step, as for checkpoints of sharded parameters.
    """
    if group["algorithm"] == "sgd":
        if eager and group["momentum"] != 0 and "momentum_buffer" not in state:
            # what torch's own SGD has when torch.distributed.checkpoint has let it take a step without gradients
            state["momentum_buffer"] = torch.zeros_like(param, requires_grad=False)
        # None until the first step: torch then makes the gradient the first buffer
        return [state.get("momentum_buffer")]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=step_device(param, group))
        state["exp_avg"] = torch.zeros_like(param)
        state["exp_avg_sq"] = torch.zeros_like(param)
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = torch.zeros_like(param)
    names = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"]
    return [state[name] for name in names if name in state]


def step(
    group: Mapping[str, Any],
    params: list[Tensor],
    grads: list[Tensor],
    states: list[Any],
    state: MutableMapping[Tensor, dict[str, Any]],
) -> None:
    """One step of torch's functional optimizer, in place.

    Args:
        group: the options.
        params: the parameters that have a gradient.
        grads: their gradients.
        states: what :func:`init_state` returned for each, in one list.
        state: the optimizer's state, for what the first step creates.
    """
    if not params:
        return
    width = len(states) // len(params)
    placed = [is_dtensor(param) for param in params]
    if any(placed) and not all(placed):  # torch's foreach kernels do not take both at once
        for kind in (False, True):
            chosen = [i for i, is_placed in enumerate(placed) if is_placed == kind]
            entries = [value for i in chosen for value in states[i * width : (i + 1) * width]]
            step(group, [params[i] for i in chosen], [grads[i] for i in chosen], entries, state)
        return
    columns = [states[i::width] for i in range(width)]
    if group["algorithm"] == "sgd":
        buffers = columns[0]
        options = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "foreach", "fused")
        sgd(params, grads, buffers, **{key: group[key] for key in options})
        if group["momentum"] != 0:
            for param, buffer in zip(params, buffers, strict=True):
                state[param]["momentum_buffer"] = buffer
        return
    *moments, steps = columns
    exp_avgs, exp_avg_sqs, max_exp_avg_sqs = moments if len(moments) == 3 else (*moments, [])
    beta1, beta2 = group["betas"]
    options = ("amsgrad", "lr", "weight_decay", "eps", "maximize", "foreach", "fused", "capturable")
    adamw(
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        max_exp_avg_sqs,
        steps,
        has_complex=any(torch.is_complex(p) for p in params),
        beta1=beta1,
        beta2=beta2,
        **{key: group[key] for key in options},
    )
