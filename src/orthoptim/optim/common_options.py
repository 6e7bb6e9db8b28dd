"""The options that all methods share: stated once, and shown in the signature and the documentation of each method.

A method takes them as ``**common: Unpack[CommonOptions]``, which type checkers know, and writes ``{params}`` and
``{common}`` among the arguments in its docstring.
"""

import inspect
import textwrap
from typing import Any, TypedDict, Unpack

from orthoptim.parts import Scale, Side
from orthoptim.stiefel.cost_model import BLOCK_CAP_MB
from orthoptim.views import ViewLike


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
view: how a parameter is seen as matrices: ``"matrix"``, its last two dims; ``"filters"``, the first dim against
    the rest; ``"kernels"``, the k×k kernels of a convolution; or an :class:`orthoptim.View`.
side: whether ``"rows"`` or ``"columns"`` are orthonormal; ``"auto"``: the shorter side.
scale: σ, for XXᴴ = σ²I. ``"rms"``: √(rows/columns) of each matrix as it is stored, so that a linear layer keeps
    the root mean square of its input. A step is that of X/σ with its gradient, so that the learning rate means the
    same whatever σ is.
maximize: maximize the objective instead of minimizing it.
compile: compile the update with torch.compile, once per matrix shape; complex matrices are stepped without.
block_cap_mb: how many MB of matrices are stepped at a time, at most. Temporaries take about five times as much
    memory; on a GPU smaller blocks take more launches. On a CPU, blocks always fit the cache.
capturable: whether a step must be safe to capture in a CUDA graph. Orthogonal parameters always step on their
    device, so this only refuses options that wait for it; ordinary AdamW groups use the value as their own
    default, and then count their steps on the device.""",
}
"""What replaces the words in braces in the arguments of a docstring."""


def show_common_options(method: type[Any]) -> inspect.Signature:
    """Write the common options into the documentation of a method and into its signature, which is returned."""
    if method.__doc__:
        # Python 3.13 removes the common indentation of a docstring, earlier versions do not
        method.__doc__ = inspect.cleandoc(method.__doc__)
        for word, text in DOCUMENTATION.items():
            method.__doc__ = method.__doc__.replace(f"    {word}", textwrap.indent(text, "    "))
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
