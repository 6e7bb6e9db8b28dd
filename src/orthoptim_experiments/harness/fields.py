"""One line of a results file, as bytes that anyone may have written: parsed and checked, field by field.

Whatever is wrong raises :class:`DefectError`, whose message says so in a few words; nothing else is raised. All that
comes out is bounded: the length of texts and names, the depth of nested values, the size of numbers.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from orthoptim_experiments.harness.text import excerpt

LONGEST_LINE = 8 << 20
"""Bytes; a picture of a megapixel fits."""

LONGEST_NAME = 200
LONGEST_TEXT = 10_000
DEEPEST = 8
"""The deepest nesting of values, the line itself included."""

MOST_VALUES = 1000
"""The most values in a table, or nested in one of its values."""

LARGEST_COUNT = 1 << 53
"""The largest number of steps: doubles are exact up to it."""

LONGEST_TIME = 1e10
"""Seconds: three centuries."""

_PNG = b"\x89PNG\r\n\x1a\n"

_Value = TypeVar("_Value")

Check = Callable[[object, str], Any]
"""Returns the value of a field, given with its name, or raises :class:`DefectError`."""


class DefectError(ValueError):
    """A defect of a line or a field, in a few words."""


def parse(line: bytes) -> dict[str, Any]:
    """The JSON object that a line holds."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise DefectError("not UTF-8") from None
    try:
        entry = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise DefectError("nested too deeply") from None
    except DefectError:
        raise
    except ValueError as error:  # Python itself limits the digits of an integer
        raise DefectError("a number has too many digits" if "digits" in str(error) else "not JSON") from None
    if not isinstance(entry, dict):
        raise DefectError(f"{excerpt(entry)} is not a JSON object")
    return entry


def name(value: object, field: str) -> str:
    """A name: of a method, an experiment, a column, a picture."""
    if not isinstance(value, str):
        raise DefectError(f"{field} {excerpt(value)} is not a text")
    if not 0 < len(value) <= LONGEST_NAME:
        raise DefectError(f"{field} {excerpt(value)} has {len(value)} characters, not 1 to {LONGEST_NAME}")
    if any(_is_control(char) for char in value):
        raise DefectError(f"{field} {excerpt(value)} has characters that cannot be shown")
    return value


def text(value: object, field: str) -> str:
    """A text of the kind that people read; None is an empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DefectError(f"{field} {excerpt(value)} is not a text")
    if len(value) > LONGEST_TEXT:
        raise DefectError(f"{field} has {len(value)} characters, more than {LONGEST_TEXT}")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise DefectError(f"{field} {excerpt(value)} is no valid Unicode")
    return value


def count(value: object, field: str) -> int:
    """A seed, or a number of steps."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DefectError(f"{field} {excerpt(value)} is not a whole number")
    if not 0 <= value <= LARGEST_COUNT:
        raise DefectError(f"{field} {excerpt(value)} is out of range")
    return value


def number(value: object, field: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DefectError(f"{field} {excerpt(value)} is not a number")
    try:
        finite = math.isfinite(value)  # raises for an integer beyond all doubles
    except OverflowError:
        finite = False
    if not finite:
        raise DefectError(f"{field} {excerpt(value)} is not a finite number")
    return value


def duration(value: object, field: str) -> float:
    """Seconds."""
    if not 0 <= number(value, field) <= LONGEST_TIME:
        raise DefectError(f"{field} {excerpt(value)} is out of range")
    return number(value, field)


def png(value: object, field: str) -> bytes:
    """The bytes of a PNG file in base64."""
    try:
        data = base64.b64decode(value.encode("ascii") if isinstance(value, str) else b"?", validate=True)
    except ValueError:
        raise DefectError(f"{field} is not base64") from None
    if not data.startswith(_PNG):
        raise DefectError(f"{field} is not a PNG file")
    return data


def plain(value: object, field: str) -> Any:
    """A value as configurations have them: a number, a text, a list or a table of such, not too large or too deep."""
    left = MOST_VALUES

    def check(part: object, depth: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise DefectError(f"{field} has too many values")
        if depth > DEEPEST:
            raise DefectError(f"{field} is nested too deeply")
        if isinstance(part, str):
            text(part, field)
        elif isinstance(part, list):
            for item in part:
                check(item, depth + 1)
        elif isinstance(part, dict):
            for key, item in part.items():
                name(key, f"a name in {field}")
                check(item, depth + 1)
        elif part is not None and not isinstance(part, bool):
            number(part, field)

    check(value, 2)
    return value


def required(entry: dict[str, Any], field: str, check: Callable[[object, str], _Value]) -> _Value:
    """The checked value of a field that must be there."""
    if field not in entry:
        raise DefectError(f"it has no {field!r}")
    return check(entry[field], field)


def table(
    entry: dict[str, Any], field: str, report: Callable[[str], None], checks: Mapping[str, Check] | None = None
) -> dict[str, Any]:
    """A table of plain values; wrong ones are reported and left out.

    Args:
        entry: the entry.
        field: where in it the table is.
        report: called with each defect.
        checks: of values that are more than shown, by their names.
    """
    given, values = entry.get(field), {}
    if not isinstance(given, dict):
        report(f"{field} {excerpt(given)} is not a table" if field in entry else f"it has no {field!r}")
        return {}
    if len(given) > MOST_VALUES:
        report(f"{field} has {len(given)} values, more than {MOST_VALUES}")
        return {}
    for key, value in given.items():
        try:
            check = (checks or {}).get(name(key, f"a name in {field}"), plain)
            values[key] = check(value, f"{field} {key!r}")
        except DefectError as defect:
            report(str(defect))
    return values


def _positive(value: object, field: str) -> float:
    if number(value, field) <= 0:
        raise DefectError(f"{field} {excerpt(value)} is not positive")
    return number(value, field)


CONFIG: dict[str, Check] = {
    "tolerance": _positive,
    **dict.fromkeys(("p", "n", "units", "budget", "stride", "threads", "nproc"), count),
    **dict.fromkeys(("experiment", "scale", "variant", "dtype", "device", "dataset"), name),
}
"""Checks of the settings that figures, tables and claims compute with; all others are only displayed."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise DefectError(f"it has {excerpt(key)} twice")
        values[key] = value
    return values


def _no_constant(constant: str) -> float:
    raise DefectError(f"{constant} is not JSON")


def _is_control(char: str) -> bool:
    return char < " " or "\x7f" <= char <= "\x9f" or "\ud800" <= char <= "\udfff"
