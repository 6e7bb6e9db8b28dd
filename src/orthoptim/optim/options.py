"""The options of a constrained group: its base optimizer as plain values that anybody may change.

``method_options`` are the names of the options of the method everywhere below.
"""

from collections.abc import Collection, Mapping
from typing import Any

from orthoptim.base import Base

WITHOUT_EFFECT = ("amsgrad", "differentiable", "foreach", "fused")
"""Options of torch's optimizers that a constrained group has no use for."""


def flatten_base(base: Base, method_options: Collection[str]) -> dict[str, Any]:
    """A base optimizer as plain values."""
    if not isinstance(base, Base):
        raise TypeError(f"base must be a base optimizer such as orthoptim.VAdam(), but got {base!r}")
    keys = base_keys(type(base), method_options)
    return {"base": base.name, **{keys[name]: value for name, value in base.hyperparameters.items()}}


def complete(
    saved: Mapping[str, Any], defaults: Mapping[str, Any], method_options: Collection[str], known: Collection[str]
) -> dict[str, Any]:
    """A saved group with the defaults of the options it lacks, and without options of other methods and bases.

    Args:
        saved: the group.
        defaults: those of the optimizer.
        method_options: see the module.
        known: every option that some method or base has.
    """
    options = dict(defaults)
    base = Base.named(saved.get("base", defaults["base"]))
    if base.name != defaults["base"]:
        for key in base_keys(Base.named(defaults["base"]), method_options).values():
            del options[key]
        keys = base_keys(base, method_options).values()
        # where nothing is missing, the base may be one whose hyperparameters have no defaults
        options.update(dict.fromkeys(keys) if saved.keys() >= set(keys) else flatten_base(base(), method_options))
    if options.get("landing", "") is None:
        options["landing"] = base.default_landing or "safe"
    foreign = {*known, *WITHOUT_EFFECT} - options.keys()
    return options | {key: value for key, value in saved.items() if key not in foreign}


def refuse_without_effect(group: dict[str, Any], options: Collection[str], label: str) -> None:
    """Refuse what torch's optimizers have and these have not; what is switched off is left out.

    Args:
        group: what is given.
        options: those that the group can have.
        label: its name in messages.
    """
    for name in WITHOUT_EFFECT:
        if name not in options and group.pop(name, None):
            raise ValueError(
                f"{label}: {name!r} has no effect on orthogonal parameters: leave it out, or put parameters that need "
                "it into an ordinary group (algorithm='adamw')"
            )


def group_defaults(
    group: dict[str, Any], defaults: Mapping[str, Any], method_options: Collection[str]
) -> dict[str, Any]:
    """What a new group has that is not given; takes its base optimizer out of it, and what is ``None`` there.

    Args:
        group: what is given.
        defaults: those of the optimizer.
        method_options: see the module.
    """
    defaults = dict(defaults)
    if "base" in group:
        base = group.pop("base")
        if isinstance(base, str):
            base = Base.named(base)()
        others = set(base_keys(Base.named(defaults["base"]), method_options).values())
        defaults = {key: value for key, value in defaults.items() if key not in others} | flatten_base(
            base, method_options
        )
    # None means what suits the base
    for name in {"lr", "landing"} & defaults.keys():
        if group.get(name) is None:
            group.pop(name, None)
    base_class = Base.named(defaults["base"])
    if group.get("lr", defaults["lr"]) is None:
        if base_class.default_lr is None:
            raise ValueError("parameter group didn't specify a value of required optimization parameter lr")
        defaults["lr"] = base_class.default_lr
    if defaults.get("landing", "") is None:
        defaults["landing"] = base_class.default_landing or "safe"
    return defaults


def base_keys(base: type[Base], method_options: Collection[str]) -> dict[str, str]:
    """Where a group keeps each hyperparameter of its base: under its own name, unless the method has that name."""
    return {name: f"base_{name}" if name in method_options else name for name in base.names}
