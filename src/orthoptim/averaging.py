"""Averages of weights that stay on the manifold."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from orthoptim.functional import project_
from orthoptim.groups import Patterns, check_views, match
from orthoptim.tensors import is_dtensor
from orthoptim.validation import check_number

Tensors = list[Tensor] | tuple[Tensor, ...]
Average = Callable[[Tensors, Tensors, Tensor | int], None]


def ema_multi_avg_fn(model: nn.Module, patterns: Patterns, decay: float = 0.999) -> Average:
    r"""Exponential moving average for ``AveragedModel`` that keeps orthogonal parameters orthogonal.

    .. math::
        E ← \operatorname{polar}(β E + (1 - β) X)

    An average of orthogonal matrices is not orthogonal. Here it is replaced by the nearest orthonormal matrix after
    each update; the other parameters are averaged as by ``torch.optim.swa_utils.get_ema_multi_avg_fn``.

    Args:
        model: the model that is averaged, on the device on which it is averaged; not sharded.
        patterns: which of its parameters are orthogonal, see :func:`orthoptim.param_groups`.
        decay: β.

    Example:
        >>> import orthoptim as oo
        >>> from torch.optim.swa_utils import AveragedModel
        >>> orthogonal = {"weight": "matrix"}
        >>> model = oo.orthogonalize_(nn.Linear(4, 4), orthogonal)
        >>> ema = AveragedModel(model, multi_avg_fn=oo.ema_multi_avg_fn(model, orthogonal, decay=0.9))
        >>> ema.update_parameters(model)
        >>> _ = oo.orthogonalize_(model, orthogonal, init="random")
        >>> ema.update_parameters(model)
        >>> bool(oo.distance(ema.module.weight) < 1e-5)
        True
    """
    check_number("decay", decay)
    if not 0 <= decay <= 1:
        raise ValueError(f"Invalid decay value: {decay}; it must be between 0 and 1")
    matched = match(model, patterns)
    check_views(model, matched, "matrix", "auto")
    constrained = [
        (name, param, options.get("view", "matrix"), options.get("side", "auto"), options.get("scale", 1.0))
        for options, named in matched
        for name, param in named
    ]
    sharded = [name for name, param, *_ in constrained if is_dtensor(param)]
    if sharded:
        raise ValueError(
            f"parameter {sharded[0]!r} is sharded: average by torch's function, and orthogonalize_ the average"
        )

    @torch.no_grad()
    def update(averages: Tensors, current: Tensors, _: Tensor | int) -> None:
        # AveragedModel passes aliases of the parameters, those of one device and dtype at a time
        device, dtype = current[0].device, current[0].dtype
        if constrained and device not in {param.device for _name, param, *_rest in constrained}:
            raise ValueError(f"parameters are averaged on {device}, where the model is not: average on its own device")
        here = [entry for entry in constrained if entry[1].device == device and entry[1].dtype == dtype]
        places = {_place(param): (name, *options) for name, param, *options in here if param.numel()}
        for average, value in zip(averages, current, strict=True):
            if not (average.is_floating_point() or average.is_complex()):
                average.copy_(value)  # a counter among the buffers
                continue
            average.lerp_(value, 1 - decay)
            if _place(value) in places:
                _name, view, side, scale = places.pop(_place(value))
                project_(average, view=view, side=side, scale=scale)
        if places:
            missing = next(iter(places.values()))[0]
            raise ValueError(
                f"parameter {missing!r} is not among those that are averaged: give ema_multi_avg_fn the model that "
                "update_parameters is given"
            )

    return update


def _place(tensor: Tensor) -> tuple[int, torch.Size]:
    """What a parameter and its alias have in common."""
    return tensor.data_ptr(), tensor.shape
