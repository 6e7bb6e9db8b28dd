"""The options of a constrained group: plain values that anybody may change, those of its base optimizer among them.

Options that are misspelt, or belong to another method or base, are refused with what was meant. ``method_options`` are
the names of the options of the method everywhere below.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from orthoptim.base import Base
from orthoptim.engine.rule import base_keys

WITHOUT_EFFECT = ("amsgrad", "differentiable", "foreach", "fused")
"""Options of torch's optimizers that a constrained group has no use for."""

NORM_IS_FIXED = "weight_decay must be 0 for orthogonal parameters, whose norm is fixed"

# Names of other libraries that are too far from torch's to be found as misspelt.
_ALIASES = {
    "learning_rate": "lr",
    "wd": "weight_decay",
    "decay": "weight_decay",
    "beta": "betas",
    "beta1": "betas",
    "beta2": "betas",
    "epsilon": "eps",
    "mu": "momentum",
}


def flatten_base(base: Base, method_options: Collection[str]) -> dict[str, Any]:
    """A base optimizer as plain values."""
    if not isinstance(base, Base):
        raise TypeError(f"base must be a base optimizer such as orthoptim.VAdam(), but got {base!r}")
    keys = base_keys(type(base), method_options)
    return {"base": base.name, **{keys[name]: value for name, value in base.hyperparameters.items()}}


def defaults_of(
    group: dict[str, Any], defaults: Mapping[str, Any], method_options: Collection[str], known: set[str], label: str
) -> dict[str, Any]:
    """All options of a new constrained group with their defaults; raises for options that it cannot have.

    Takes out of the group its base optimizer, what is ``None``, and what is switched off and has no effect.

    Args:
        group: what is given.
        defaults: those of the optimizer.
        method_options: see the module.
        known: every option that some method or base has.
        label: the name of the group in messages.
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
    for name in WITHOUT_EFFECT:
        if name not in defaults and group.pop(name, None):
            raise ValueError(
                f"{label}: {name!r} has no effect on orthogonal parameters: leave it out, or put parameters that need "
                "it into an ordinary group (algorithm='adamw')"
            )
    check_names(set(group), {*defaults, "weight_decay"}, known, label, "this optimizer with this base")
    return defaults


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
    options["scale"] = 1.0  # of what was saved before there was one
    foreign = {*known, *WITHOUT_EFFECT} - options.keys()
    return options | {key: value for key, value in saved.items() if key not in foreign}


def check_keywords(method: str, given: Iterable[str], options: Collection[str]) -> None:
    """Refuse keyword arguments that a method does not have, and say who has them.

    Raises:
        TypeError: as Python would, with a cure.
    """
    for name in given:
        if name in options:
            continue
        meant = _ALIASES.get(name, name)
        if meant == "weight_decay":
            raise TypeError(f"{method}: {NORM_IS_FIXED}; decay the others in an ordinary group (algorithm='adamw')")
        base = None if meant in options else _base_with(meant)
        if base is not None:
            raise TypeError(f"{method} leaves {name!r} to its base optimizer: pass base={base}")
        near = _meant(name, options)
        cure = f"did you mean {near!r}?" if near else f"its options are {', '.join(sorted(options))}"
        raise TypeError(f"{method} got an unexpected keyword argument {name!r}; {cure}")


def check_names(given: set[str], options: set[str], known: set[str], label: str, whose: str) -> None:
    """Refuse options that belong to another method or base, and misspelt ones; other keys are the user's business."""
    allowed = options | {"params", "param_names", "algorithm"}
    for name in sorted(given - allowed):
        near = _meant(name, allowed)
        if name in known:
            base = _base_with(name) if "base" in options else None
            cure = f"; if you mean that of another base, pass base={base}" if base else ""
            raise ValueError(f"{label}: {name!r} is not an option of {whose}{cure}")
        if near is not None:
            raise ValueError(f"{label}: unknown option {name!r}; did you mean {near!r}?")


def _meant(name: str, options: Collection[str]) -> str | None:
    """The option that somebody may have meant."""
    name = name.lower()
    if _ALIASES.get(name) in options:
        return _ALIASES[name]
    return next(iter(difflib.get_close_matches(name, options, n=1, cutoff=0.7)), None)


def _base_with(name: str) -> str | None:
    """How to build a base optimizer with this hyperparameter: one of those that are most used, if it has it."""
    kinds = sorted(Base.all(), key=lambda kind: kind.name not in ("vadam", "sgd"))
    base = next((kind for kind in kinds if name in kind.names), None)
    return None if base is None else f"orthoptim.{base.__name__}({name}=...)"
