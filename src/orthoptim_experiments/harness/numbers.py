"""Numbers as a page shows them."""

import math

from orthoptim_experiments.harness.statistics import Estimate

MISSING = "–"

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float) -> str:
    """Three digits, in powers of ten where these are shorter.

    Example:
        >>> [number(value) for value in (9.8123e-7, 0.0123, 1.0, 1234.5, 1e-6, 5e-324, float("nan"))]
        ['9.81 × 10⁻⁷', '0.0123', '1', '1234', '10⁻⁶', '4.94 × 10⁻³²⁴', '–']
    """
    if not math.isfinite(value):
        return MISSING
    power = _power(value)
    digits = _digits(_scaled(value, power))
    if power == 0:
        return digits
    return _ten(power) if digits == "1" else f"{digits} × {_ten(power)}"


def interval(value: Estimate | None) -> str:
    """The confidence interval of an estimate in the units of its mean; empty if there is none.

    Example:
        >>> interval(Estimate(2.0, 1.0, 3.0, trials=4)), interval(Estimate(9.8e-7, 9e-7, 1.1e-6, trials=4))
        ('1–3', '9–11 × 10⁻⁷')
    """
    if value is None or not (math.isfinite(value.mean) and math.isfinite(value.low) and math.isfinite(value.high)):
        return ""
    power = _power(value.mean)
    ends = [_scaled(end, power) for end in (value.low, value.high)]
    if (value.low > 0 and value.high / 1000 > value.low) or max(map(abs, ends)) > 1e6:
        return f"{number(value.low)}–{number(value.high)}"
    low, high = map(_digits, ends)
    return f"{low}–{high}" + (f" × {_ten(power)}" if power else "")


def _power(value: float) -> int:
    """The power of ten to write a number with: 0 for numbers that are short without."""
    return 0 if value == 0 or 1e-2 <= abs(value) < 1e5 else int(f"{value:.2e}".split("e")[1])


def _scaled(value: float, power: int) -> float:
    """The value in units of a power of ten, which may itself be less than the least double."""
    return value / 10.0**power if power > -300 else value * 1e300 / 10.0 ** (power + 300)


def _ten(power: int) -> str:
    return "10" + str(power).translate(_SUPERSCRIPT)


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


_FORMATS = {
    **dict.fromkeys(("accuracy", "tta_accuracy", "optimizer_share"), ".1%"),
    **dict.fromkeys(("bpd", "test_bpd", "train_bpd"), ".3f"),
    "images_per_second": ".0f",
}


def figure(name: str, value: float) -> str:
    """A value of a column in the digits that fit the quantity.

    Example:
        >>> figure("accuracy", 0.7761), figure("bpd", 1.3001), figure("distance", 3e-7)
        ('77.6%', '1.300', '3.0e-07')
    """
    if not math.isfinite(value):
        return MISSING
    return format(value, _FORMATS.get(name, ".1e"))


def page_figure(name: str, value: float) -> str:
    """The same on a page, where powers of ten are typeset.

    Example:
        >>> page_figure("accuracy", 0.7761), page_figure("distance", 3e-7)
        ('77.6%', '3 × 10⁻⁷')
    """
    return figure(name, value) if name in _FORMATS else number(value)


def page_interval(name: str, value: Estimate | None) -> str:
    """The confidence interval of a column, in the digits of :func:`page_figure`."""
    if name in _FORMATS and value is not None and math.isfinite(value.low):
        return f"{figure(name, value.low)}–{figure(name, value.high)}"
    return interval(value)
