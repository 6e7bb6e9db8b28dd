"""The arguments of commands: parsed, or refused in one line."""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale


class UsageError(ValueError):
    """An argument that cannot be used; the message is one line for the user."""


def choice(name: str, value: str, known: Sequence[str]) -> str:
    """The value, if it is known.

    Example:
        >>> choice("scale", "tiny", ["tiny", "laptop"])
        'tiny'
    """
    if value not in known:
        raise UsageError(f"unknown {name} {value!r}; there are {', '.join(known)}")
    return value


def device(name: str) -> str:
    """The device, if it is here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise UsageError(f"device {name!r} is not available here; use cpu") from None
    return name


def check_processes(experiment: Experiment, config: Config) -> None:
    """Check that so many processes can share the work."""
    nproc, place = config.get("nproc", 1), torch.device(config["device"])
    if nproc == 1:
        if config.get("sharded"):
            raise UsageError("--sharded splits a model among processes: say how many, with --nproc")
        return
    if not experiment.parallel:
        raise UsageError(f"{experiment.name} runs in one process, without --nproc")
    if nproc > config["batch_size"]:
        raise UsageError(f"{nproc} processes are more than the {config['batch_size']} examples of a batch")
    if place.type not in ("cpu", "cuda"):
        raise UsageError(f"--nproc is for cpu and cuda, not for {place.type}")
    if place.index is not None:
        raise UsageError(f"each process has a device of its own: use --device {place.type} with --nproc")
    if place.type == "cuda" and nproc > torch.cuda.device_count():
        raise UsageError(f"{nproc} processes are more than the {torch.cuda.device_count()} devices")


def chosen_methods(experiment: Experiment, offered: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The offered methods that names or shell patterns match, in the order of the words; by default the usual ones."""
    words = [word.strip() for text in patterns for word in text.split(",") if word.strip()]
    chosen: list[str] = []
    usual = [name for name in experiment.default_methods if name in offered]  # a variant may have fewer
    for word in words or usual:
        plain = methods.parse(word)[0]
        matching = [word] if plain != word and plain in offered else fnmatch.filter(offered, word)
        if not matching:
            raise UsageError(f"unknown method {word!r} in {experiment.name}; there are {', '.join(offered)}")
        for name in matching:
            if methods.find(name).installed:
                chosen.append(name)
            elif name == word:
                raise UsageError(f"{name} is not installed; install it with: pip install 'orthoptim[peers]'")
    return list(dict.fromkeys(chosen))


def sizes(experiment: Experiment, scale: str, given: Mapping[str, str | bool | None]) -> dict[str, Any]:
    """The sizes that replace those of a scale, of the types that the scale has."""
    defaults, replaced = experiment.scales[scale].sizes, {}
    for name, value in given.items():
        if value is None:
            continue
        if name not in defaults:
            raise UsageError(f"{experiment.name} has no option --{name.replace('_', '-')}")
        replaced[name] = size(name, value, defaults[name]) if isinstance(value, str) else value
    return replaced


def size(name: str, text: str, default: Any) -> Any:
    """A size of an experiment, of the type of its default.

    Example:
        >>> size("epochs", "2.5", 10.0), size("widths", "8,16,16", [64, 256, 256])
        (2.5, [8, 16, 16])
    """
    if isinstance(default, str):
        return text
    numbers = _numbers(text, type(default[0]) if isinstance(default, list) else type(default))
    if isinstance(default, list) and len(numbers) == len(default):
        return numbers
    if not isinstance(default, list) and len(numbers) == 1:
        return numbers[0]
    example = ",".join(map(str, default)) if isinstance(default, list) else str(default)
    raise UsageError(f"--{name.replace('_', '-')} {text!r} makes no sense; write something like {example}")


def _numbers(text: str, kind: type[int] | type[float]) -> list[float]:
    """Positive numbers by comma; none if one of them is not."""
    try:
        numbers = [kind(word) for word in text.split(",")]
    except ValueError:
        return []
    return numbers if all(0 < number < math.inf for number in numbers) else []


def seeds(text: str | None, scale: Scale) -> list[int]:
    """Seeds: a number of them, a range or a list.

    Example:
        >>> few = Scale("", seeds=2)
        >>> seeds(None, few), seeds("3", few), seeds("5-7", few), seeds("4,2", few)
        ([0, 1], [0, 1, 2], [5, 6, 7], [4, 2])
    """
    if text is None:
        return list(range(scale.seeds))
    try:
        if "," in text:
            chosen = [int(word) for word in text.split(",") if word.strip()]
        elif "-" in text[1:]:
            first, last = text.split("-")
            chosen = list(range(int(first), int(last) + 1))
        else:
            chosen = list(range(int(text)))
    except ValueError:
        chosen = []
    if not chosen or min(chosen) < 0:
        raise UsageError(f"seeds {text!r} make no sense; use a number (3), a range (0-9) or a list (4,7)")
    return list(dict.fromkeys(chosen))


def world_sizes(text: str) -> list[int]:
    """Numbers of ranks, by comma.

    Example:
        >>> world_sizes("8,64")
        [8, 64]
    """
    sizes = [int(number) for number in _numbers(text, int)]
    if not sizes:
        raise UsageError(f"world sizes {text!r} make no sense; write something like 8,64,1024")
    return sizes


def with_settings(names: Sequence[str], settings: Sequence[str]) -> list[str]:
    """The names, with hyperparameters that are set by hand in them: such a contender has a name of its own.

    Example:
        >>> with_settings(["POGO", "RGD"], ["POGO.lr=0.3", "POGO.base=VAdam"])
        ['POGO:lr=0.3:base=VAdam', 'RGD']
    """
    changed = {name: name for name in names}
    for setting in settings:
        method, option, value = _setting("--set", setting, names)
        changed[method] += f":{option}={value}"
    return list(changed.values())


def with_grid(names: Sequence[str], grids: Sequence[str]) -> list[str]:
    """The names, those of which a grid names values replaced by one contender for each combination of them.

    Example:
        >>> with_grid(["POGO", "RGD"], ["POGO.lr=0.1,0.3", "POGO.momentum=0,0.9"])[:2]
        ['POGO:lr=0.1:momentum=0', 'POGO:lr=0.1:momentum=0.9']
        >>> with_grid(["POGO", "RGD"], ["lr=0.1,0.3"])
        ['POGO:lr=0.1', 'POGO:lr=0.3', 'RGD:lr=0.1', 'RGD:lr=0.3']
    """
    expanded = {name: [name] for name in names}
    for grid in grids:
        everyone = "." not in grid.partition("=")[0]
        for target in names if everyone else [""]:
            method, option, values = _setting("--grid", f"{target}.{grid}" if everyone else grid, names)
            points = [value for value in values.split(",") if value]
            if not points:
                raise UsageError(f"--grid {grid!r} has no values; write something like POGO.lr=0.1,0.3")
            expanded[method] = [f"{name}:{option}={value}" for name in expanded[method] for value in points]
    return [name for variants in expanded.values() for name in variants]


def _setting(flag: str, setting: str, names: Sequence[str]) -> tuple[str, str, str]:
    left, equals, value = setting.partition("=")
    method, dot, option = left.rpartition(".")
    if not (equals and dot and method and option):
        raise UsageError(f"cannot read {flag} {setting!r}; write METHOD.OPTION=VALUE, such as POGO.lr=0.3")
    if method not in names:
        raise UsageError(f"{flag} {setting!r}: {method} is not among the methods of this run, {', '.join(names)}")
    return method, option, value
