"""Names of options: those that are misspelt, or belong to somebody else, are refused with what was meant."""

import difflib
from collections.abc import Collection, Iterable

from orthoptim.base import Base

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


def check_names(given: set[str], options: set[str], known: set[str], label: str) -> None:
    """Refuse options that belong to another method or base, and misspelt ones; other keys are the user's business."""
    allowed = options | {"params", "param_names", "algorithm", "weight_decay"}
    for name in sorted(given - allowed):
        if name in known:
            base = _base_with(name)
            cure = f"; if you mean that of another base, pass base={base}" if base else ""
            raise ValueError(f"{label}: {name!r} is not an option of this optimizer with this base{cure}")
        _refuse_misspelt(name, allowed, label)


def check_ordinary_names(given: set[str], algorithm: str, options: set[str], known: set[str], label: str) -> None:
    """The same for an ordinary group."""
    allowed = options | {"params", "param_names", "algorithm"}
    for name in sorted(given - allowed):
        if name in known:
            raise ValueError(f"{label}: {name!r} is not an option of algorithm {algorithm!r}")
        _refuse_misspelt(name, allowed, label)


def _refuse_misspelt(name: str, options: Collection[str], label: str) -> None:
    near = _meant(name, options)
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
