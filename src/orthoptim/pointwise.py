"""Functions of a few numbers per matrix, each a single kernel on a GPU.

Between its products a step computes with one number per matrix: bias corrections, the length of a leap, whether it is
clipped, whether it is finite. That is little work, but torch launches a kernel for each sign, about sixty in a step,
and a launch takes a GPU as long as a small product. A function that is decorated with
:func:`orthoptim.stiefel.batches.pointwise` is traced once for each kind of arguments and becomes one Triton kernel.
Where there is no CUDA or ROCm device, no Triton, an operation without a translation, or a compiler that is at work
already, the function is called as it is: it is also the oracle.

Results agree up to rounding: Triton contracts products and sums.
"""

import functools
import importlib
import importlib.util
import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

T = TypeVar("T")

DEVICES = {"cuda"}
"""Types of devices, that of ROCm included, whose functions become kernels."""

_BLOCK = 128
_TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.bool: "tl.int1",
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# bounds pass on what is not a number, as torch's do and the hardware's do not
_LEAST = "tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})"
_MOST = "tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})"
_EXPRESSIONS = {
    **{name: f"{{0}} {sign} {{1}}" for name, sign in _COMPARISONS.items()},
    "_to_copy": "{0}",
    "abs": "tl.abs({0})",
    "add": "{0} + {1}",
    "addcmul": "{0} + {value} * {1} * {2}",
    "alias": "{0}",
    "bitwise_and": "{0} & {1}",
    "bitwise_not": "{0} == 0",
    "bitwise_or": "{0} | {1}",
    "clamp_max": _LEAST,
    "clamp_min": _MOST,
    "clone": "{0}",
    "detach": "{0}",
    "div": "{0} / {1}",
    "expm1": "(tl.exp({0}.to(tl.float64)) - 1.0).to({type})",
    "lerp": "{0} + {2} * ({1} - {0})",
    "logical_and": "{0} & {1}",
    "logical_not": "{0} == 0",
    "logical_or": "{0} | {1}",
    "maximum": _MOST,
    "minimum": _LEAST,
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "reciprocal": "1.0 / {0}",
    "rsqrt": "1.0 / {sqrt}({0})",
    "rsub": "{1} - {0}",
    "scalar_tensor": "tl.full([BLOCK], {0}, {type})",
    "sqrt": "{sqrt}({0})",
    "square": "{0} * {0}",
    "sub": "{0} - {1}",
    "where": "tl.where({0}, {1}, {2})",
}
"""Operations of aten in the words of Triton; {0}, {1} and {2} are their arguments."""


class _Kernel(NamedTuple):
    launch: Any  # the kernel of Triton
    dtypes: list[torch.dtype]  # of the results
    spec: TreeSpec


class _NoTranslationError(Exception):
    """There is no translation of an operation: the function is called as it is."""


_kernels: dict[str, _Kernel] = {}
_library: Any = torch.library.Library("orthoptim", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("pointwise(Tensor[] inputs, Tensor(a!)[] outputs, str key) -> ()")


def _launch(inputs: Sequence[Tensor], outputs: Sequence[Tensor], key: str) -> None:
    count = outputs[0].numel()
    strides = [tensor.stride(0) if tensor.ndim and tensor.numel() > 1 else 0 for tensor in inputs]
    steps = [tensor.stride(0) if tensor.ndim else 0 for tensor in outputs]
    grid = (math.ceil(count / _BLOCK),)
    _kernels[key].launch[grid](*inputs, *strides, *outputs, *steps, count, BLOCK=_BLOCK)


_library.impl("pointwise", _launch, "CompositeExplicitAutograd")
torch.library.register_fake("orthoptim::pointwise", lambda inputs, outputs, key: None, lib=_library)


def compute(function: Callable[..., T], args: Sequence[Any], constants: Mapping[str, Any]) -> T:
    """The values of a function, by a kernel where there is one.

    Args:
        function: takes tensors by position and constants by keyword, and returns tensors (B,). Pure, without branches
            that depend on values.
        args: tensors with a number for each matrix, (B,), or one for all.
        constants: by their names.
    """
    key = _kernel_of(function, args, constants)
    if key is None:
        return function(*args, **constants)
    batch = max(tensor.numel() for tensor in args)
    outputs = [torch.empty(batch, dtype=dtype, device=args[0].device) for dtype in _kernels[key].dtypes]
    torch.ops.orthoptim.pointwise(list(args), outputs, key)
    result: T = tree_unflatten(outputs, _kernels[key].spec)
    return result


def write_(outputs: Sequence[Tensor], function: Callable[..., Any], *args: Tensor, **constants: Any) -> None:
    """Write the values of a function to these tensors, which may be among its arguments; see :func:`compute`."""
    key = _kernel_of(function, args, constants)
    if key is not None:
        torch.ops.orthoptim.pointwise(list(args), list(outputs), key)
        return
    for output, value in zip(outputs, tree_flatten(function(*args, **constants))[0], strict=True):
        output.copy_(value)


def _kernel_of(function: Callable[..., Any], args: Sequence[Any], constants: Mapping[str, Any]) -> str | None:
    """The key of the kernel for arguments of this kind; None: there is none."""
    if args[0].device.type not in DEVICES or _is_tracing or torch.compiler.is_compiling() or not has_triton():
        return None
    kinds = [(tensor.dtype, tensor.ndim) for tensor in args]
    # functions of one name have one number each
    number = _numbers.setdefault(function, len(_numbers))
    key = f"{function.__qualname__} {number} {kinds} {sorted(constants.items())}"
    if key not in _failed and key not in _kernels:
        try:
            _kernels[key] = _compile(functools.partial(function, **constants), args, len(_kernels))
        except _NoTranslationError:
            _failed.add(key)
    return key if key in _kernels else None


_failed: set[str] = set()
_numbers: dict[Callable[..., Any], int] = {}
_is_tracing = False


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def _compile(function: Callable[..., Any], args: Sequence[Any], number: int) -> _Kernel:
    """Trace the function, write the source of a kernel, and have Triton read it."""
    source, dtypes, spec = translate(function, [(a.dtype, a.ndim) for a in args], f"pointwise_{number}")
    name = f"<orthoptim pointwise {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # where Triton looks for it
    scope = {"triton": importlib.import_module("triton"), "tl": importlib.import_module("triton.language")}
    exec(compile(source, name, "exec"), scope)  # nosec B102
    return _Kernel(scope[f"pointwise_{number}"], dtypes, spec)


def translate(
    function: Callable[..., Any], kinds: Sequence[tuple[torch.dtype, int]], name: str
) -> tuple[str, list[torch.dtype], TreeSpec]:
    """The source of a kernel, the dtypes of its results, and how these are put together.

    Args:
        function: what to translate.
        kinds: dtype of each argument, and whether it has a batch dim.
        name: of the kernel.

    Raises:
        _NoTranslationError: for an operation that has no translation.
    """
    spec: list[TreeSpec] = []

    def flat(*args: Tensor) -> tuple[Tensor, ...]:
        leaves, tree = tree_flatten(function(*args))
        spec.append(tree)
        return tuple(leaves)

    global _is_tracing
    _is_tracing = True  # functions that this one calls become part of its kernel
    try:
        with _disable_current_modes(), torch.no_grad():
            examples = [torch.ones((2,) if ndim else (), dtype=dtype) for dtype, ndim in kinds]
            graph = make_fx(torch.func.functionalize(flat))(*examples).graph
    finally:
        _is_tracing = False
    inputs = [f"a{i}" for i in range(len(kinds))]
    lines: list[str] = []
    dtypes: list[torch.dtype] = []
    names: dict[Any, str] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = f"v{len(names)}"
            i = len(names) - 1
            lines.append(f"{names[node]} = tl.load({inputs[i]} + i * s{i}, mask=inside)")
        elif node.op == "call_function":
            names[node] = f"v{len(names)}"
            lines.append(f"{names[node]} = {_expression(node, names)}")
        elif node.op == "output":
            for k, result in enumerate(node.args[0]):
                dtypes.append(result.meta["val"].dtype)
                value = f"({names[result]} + tl.full([BLOCK], 0, {_TYPES[dtypes[-1]]}))"  # of one number for all
                value = names[result] if dtypes[-1] is torch.bool else value
                lines.append(f"tl.store(o{k} + i * r{k}, {value}, mask=inside)")
        else:
            raise _NoTranslationError(node.op)
    strides = [f"s{i}" for i in range(len(kinds))]
    outputs = [f"{letter}{k}" for letter in "or" for k in range(len(dtypes))]
    head = f"@triton.jit\ndef {name}({', '.join([*inputs, *strides, *outputs, 'count'])}, BLOCK: tl.constexpr):\n"
    body = ["i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)", "inside = i < count", *lines]
    return head + "".join(f"    {line}\n" for line in body), dtypes, spec[0]


def _expression(node: Any, names: dict[Any, str]) -> str:
    """One operation of aten in the words of Triton."""
    op = node.target.overloadpacket.__name__ if hasattr(node.target, "overloadpacket") else str(node.target)
    dtype = node.meta["val"].dtype
    tensors = [arg for arg in node.args if hasattr(arg, "meta")]
    inner = dtype
    if op in _COMPARISONS or dtype is torch.bool:
        inner = functools.reduce(torch.promote_types, [arg.meta["val"].dtype for arg in tensors])
        if op in _COMPARISONS and not inner.is_floating_point and any(isinstance(arg, float) for arg in node.args):
            raise _NoTranslationError(op)

    def word(arg: Any) -> str:
        if not hasattr(arg, "meta"):
            return _number(arg)
        own = arg.meta["val"].dtype
        return names[arg] if own is inner else f"{names[arg]}.to({_TYPES[inner]})"

    if dtype not in _TYPES or any(arg.meta["val"].dtype not in _TYPES for arg in tensors):
        raise _NoTranslationError(f"{op} of {dtype}")
    words = [word(arg) for arg in node.args if not isinstance(arg, list | tuple)]
    if op == "where":
        words[0] = names[node.args[0]]
    if op == "clamp":
        low, high = (*words[1:], "None")[:2]
        value = words[0] if low == "None" else _MOST.format(words[0], low)
        return value if high == "None" else _LEAST.format(f"({value})", high)
    if op == "pow" and node.args[1] in (2, 3, 4):
        return " * ".join([words[0]] * int(node.args[1]))
    if op not in _EXPRESSIONS or (op in ("addcmul", "lerp") and len(words) < 3):
        raise _NoTranslationError(op)
    expression = _EXPRESSIONS[op]
    if "alpha" in node.kwargs:  # of add and sub
        words[1] = f"{node.kwargs['alpha']!r} * {words[1]}"
    if op == "div" and inner is torch.float32:  # rounded as torch's; it takes no numbers
        expression = "tl.div_rn({0}, {1})"
        words = [each if each.startswith("v") else f"tl.full([BLOCK], {each}, tl.float32)" for each in words]
    sqrt = "tl.sqrt_rn" if inner is torch.float32 else "tl.sqrt"
    return expression.format(*words, type=_TYPES[dtype], sqrt=sqrt, value=node.kwargs.get("value", 1))


def _number(value: Any) -> str:
    is_special = isinstance(value, float) and not math.isfinite(value)
    return f'float("{value}")' if is_special else repr(value)
