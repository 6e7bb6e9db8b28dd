"""A failing sequence made small: leave out what is not needed for the same promise to break."""

from collections.abc import Iterator
from typing import Any

from tests.fuzz import operations as ops
from tests.fuzz.expectations import Violation
from tests.fuzz.machine import replay
from tests.fuzz.start import Group, Start

Sequence = tuple[Start, list[ops.Operation]]


def violation_of(sequence: Sequence) -> Violation | None:
    """The promise that a sequence breaks."""
    try:
        replay(*sequence)
    except Violation as violation:
        return violation
    return None


def shrink(sequence: Sequence, rule: str, attempts: int = 400) -> Sequence:
    """The smallest sequence found that breaks the same promise."""
    left = attempts
    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _simpler(sequence):
            left -= 1
            if _breaks(candidate, rule):
                sequence, smaller = candidate, True
                break
            if left <= 0:
                break
    return sequence


def as_python(sequence: Sequence) -> str:
    """The sequence as a test."""
    begin, operations = sequence
    lines = "".join(f"            {_source(operation)},\n" for operation in operations)
    return f"def test_sequence():\n    replay(\n        {_source(begin)},\n        [\n{lines}        ],\n    )"


def _source(value: Any) -> str:
    """A value as Python, without the arguments that have their default."""
    if not hasattr(value, "_fields"):
        if isinstance(value, tuple):
            return "(" + "".join(f"{_source(each)}, " for each in value).strip() + ")"
        return repr(value)
    defaults = value._field_defaults
    given = {name: each for name, each in value._asdict().items() if name not in defaults or each != defaults[name]}
    return f"{type(value).__name__}({', '.join(f'{name}={_source(each)}' for name, each in given.items())})"


def _breaks(sequence: Sequence, rule: str) -> bool:
    try:
        violation = violation_of(sequence)
    except Exception:  # a start that cannot be built
        return False
    return violation is not None and violation.rule == rule


def _simpler(sequence: Sequence) -> Iterator[Sequence]:
    """Sequences with one thing less, the largest things first."""
    begin, operations = sequence
    for size in sorted({len(operations) // 2, len(operations) // 4, 1} - {0}, reverse=True):
        for at in range(len(operations) - size, -1, -size):
            yield begin, operations[:at] + operations[at + size :]
    for index in range(len(begin.groups) if len(begin.groups) > 1 else 0):
        yield begin._replace(groups=begin.groups[:index] + begin.groups[index + 1 :]), operations
    for index, group in enumerate(begin.groups):
        for smaller in _simpler_groups(group):
            yield begin._replace(groups=(*begin.groups[:index], smaller, *begin.groups[index + 1 :])), operations
    for at, operation in enumerate(operations):
        if isinstance(operation, ops.Step):
            for simpler in _simpler_steps(operation):
                yield begin, [*operations[:at], simpler, *operations[at + 1 :]]
        if isinstance(operation, ops.AddGroup):
            for group in _simpler_groups(operation.group):
                yield begin, [*operations[:at], operation._replace(group=group), *operations[at + 1 :]]


def _simpler_groups(group: Group) -> Iterator[Group]:
    for at in range(len(group.shapes) if len(group.shapes) > 1 else 0):
        yield group._replace(shapes=group.shapes[:at] + group.shapes[at + 1 :])
    if not group.ordinary:
        plain = group._replace(dtype="float32", base="sgd", layouts=("plain",), tensor_lr=False, lr=1.0)
        for name, value in plain._asdict().items():
            if getattr(group, name) != value:
                yield group._replace(**{name: value})


def _simpler_steps(step: ops.Step) -> Iterator[ops.Step]:
    gradients = step.gradients
    for at, gradient in enumerate(gradients):
        if len(gradients) > 1:
            yield step._replace(gradients=gradients[:at] + gradients[at + 1 :])
        reduced = [gradient._replace(layout="plain")] if gradient.layout != "plain" else []
        if len(gradient.kinds) > 1:
            kinds = gradient.kinds
            reduced += [gradient._replace(kinds=kinds[:i] + kinds[i + 1 :]) for i in range(len(kinds))]
        for smaller in reduced:
            yield step._replace(gradients=(*gradients[:at], smaller, *gradients[at + 1 :]))
