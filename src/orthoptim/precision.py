"""In which arithmetic products run: IEEE, whatever the switches of the process say.

Products that decide feasibility (MMᴴ, XXᴴ, distances, retractions) must be exact to float32. TF32 keeps ten bits of
each factor: the distance of 64×64 matrices grows from 1.3e-6 to 2.5e-3, and an orthonormal 1024×1024 matrix is measured
9e-3 off. Three kinds of switches reduce products, and all are off inside of :func:`full_precision`:

- autocast, for each type of device;
- ``torch.set_float32_matmul_precision`` and ``torch.backends.cuda.matmul.allow_tf32``, the older interface;
- ``fp32_precision`` of ``torch.backends``, its ``cuda.matmul`` and its ``mkldnn.matmul``, the newer one. A setting of
  "none" there inherits that of the backend, and this that of all backends.

The older interface writes to the newer one but not back, and torch raises when it is asked about the older one while
the two disagree. Inside, both say the same; after, both say what they said before.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch

Switch = tuple[str, str]

_MATMUL: tuple[Switch, ...] = (("cuda", "matmul"), ("mkldnn", "matmul"))
_ALL: Switch = ("generic", "all")
_INHERIT = "none"


def full_precision(*devices: torch.device, products: bool = True) -> AbstractContextManager[None]:
    """A context in which products on these devices are those of IEEE arithmetic.

    The switches belong to the process: what other threads compute meanwhile is exact, too. A graph that
    ``torch.compile`` makes of a whole ``step`` takes the switches from outside: they cannot change inside of a graph.

    Args:
        *devices: those whose autocast is switched off.
        products: whether products are to be exact; else autocast alone is off.

    Example:
        >>> torch.set_float32_matmul_precision("high")
        >>> with full_precision(torch.device("cpu")):
        ...     torch.get_float32_matmul_precision()
        'highest'
        >>> torch.get_float32_matmul_precision()
        'high'
        >>> torch.set_float32_matmul_precision("highest")
    """
    reduced = []
    for device in devices:
        kind = "cpu" if device.type == "meta" else device.type
        if torch.is_autocast_enabled(kind) and kind not in reduced:
            reduced.append(kind)
    exact = not products or torch.compiler.is_compiling() or _are_exact()
    return _AS_IT_IS if exact and not reduced else _switched(reduced, exact)


_AS_IT_IS = nullcontext()


def exact_products(condition: bool = True) -> AbstractContextManager[None]:
    """A context in which products are exact, on a condition: for those that must be among reduced ones."""
    return full_precision() if condition else _AS_IT_IS


def _are_exact() -> bool:
    for switch in _MATMUL:
        if _get(switch) not in ("ieee", _INHERIT):
            return False
    return torch.get_float32_matmul_precision() == "highest"


@contextmanager
def _switched(reduced: list[str], exact: bool) -> Iterator[None]:
    """Autocast off for these kinds of devices, and products of IEEE arithmetic unless they are exact already."""
    with ExitStack() as stack:
        for kind in reduced:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if not exact:
            stack.enter_context(_ieee_products())
        yield


@contextmanager
def _ieee_products() -> Iterator[None]:
    newer = [_own_setting(switch) for switch in _MATMUL]
    for switch in _MATMUL:
        _set(switch, "ieee")
    older = torch.get_float32_matmul_precision()  # raises before, where the interfaces disagree
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(older)
        for switch, setting in zip(_MATMUL, newer, strict=True):
            _set(switch, setting)


def _get(switch: Switch) -> str:
    """What is in force: the setting of the switch, or the one that it inherits."""
    setting: str = torch._C._get_fp32_precision_getter(*switch)
    return setting


def _set(switch: Switch, setting: str) -> None:
    torch._C._set_fp32_precision_setter(*switch, setting)


def _own_setting(switch: Switch) -> str:
    """The setting of a switch itself; torch tells what is in force, so a setting that may be inherited is tried out."""
    in_force = _get(switch)
    if switch == _ALL or in_force == _INHERIT:
        return in_force
    backend, operation = switch
    parent = _ALL if operation == "all" else (backend, "all")
    if _get(parent) != in_force:
        return in_force
    before = _own_setting(parent)
    _set(parent, "tf32" if in_force == "ieee" else "ieee")
    follows = _get(switch) != in_force
    _set(parent, before)
    return _INHERIT if follows else in_force
