"""The options that all methods share: stated once, and shown in the signature and the documentation of each method.

A method takes them as ``**common: Unpack[CommonOptions]``, which type checkers know, and writes ``{params}`` and
``{common}`` among the arguments in its docstring.
"""

import inspect
from typing import Any, TypedDict, Unpack

from orthoptim.stiefel.cost_model import BLOCK_CAP_MB
from orthoptim.views import Scale, Side, ViewLike


class CommonOptions(TypedDict, total=False):
    """Keyword arguments of every method."""

    view: ViewLike
    side: Side
    scale: Scale
    maximize: bool
    compile: bool
    block_cap_mb: float
    capturable: bool


DEFAULTS: CommonOptions = {
    "view": "matrix",
    "side": "auto",
    "scale": 1.0,
    "maximize": False,
    "compile": False,
    "block_cap_mb": BLOCK_CAP_MB,
    "capturable": False,
}

DOCUMENTATION = {
    "{params}": """\
params: parameters, named parameters or param groups; every option below may also be set per group.""",
    "{common}": """\
view: what the matrices of a parameter are: ``"matrix"``, its last two dims; ``"filters"``, the first dim
            against the rest; ``"kernels"``, the k×k kernels of a convolution; or an :class:`orthoptim.View`.
        side: whether ``"rows"`` or ``"columns"`` are orthonormal; ``"auto"``: the shorter side.
        scale: σ, for XXᴴ = σ²I. ``"rms"``: √(rows/columns) of each matrix as it is stored, so that a linear layer keeps
            the root mean square of its input. A step is that of X/σ with its gradient, so that the learning rate means
            the same whatever σ is.
        maximize: ascend instead.
        compile: compile the update of each kind of matrices with torch.compile; complex ones are stepped as without.
        block_cap_mb: how many MB of matrices are stepped at a time, at most. Their temporaries take about five times
            as much memory; on a GPU smaller blocks take more launches. On a CPU blocks fit the cache at any rate.
        capturable: whether a step must be safe to capture in a CUDA graph. Orthogonal parameters always step on their
            device, so that this refuses what waits for it; ordinary groups with AdamW take the value as their own
            default, and then count their steps on the device.""",
}
"""What stands for the words in braces in a docstring, as its section of arguments is indented."""


def show_common_options(method: type[Any]) -> inspect.Signature:
    """Write the common options into the documentation of a method and into its signature, which is returned."""
    for word, text in DOCUMENTATION.items():
        method.__doc__ = method.__doc__ and method.__doc__.replace(word, text)
    signature = inspect.signature(method.__init__)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.annotation in (Unpack[CommonOptions], "Unpack[CommonOptions]"):
            defaults = dict(DEFAULTS)
            parameters.extend(
                inspect.Parameter(name, parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
                for name, annotation in CommonOptions.__annotations__.items()
            )
        else:
            parameters.append(parameter)
    signature = signature.replace(parameters=parameters)
    vars(method.__init__)["__signature__"] = signature
    # without: inspect would show the arguments of __new__
    method.__signature__ = signature.replace(parameters=parameters[1:], return_annotation=signature.empty)
    return signature
