"""The style of each method in figures and on pages: label, colour, dashes, and a marker for grey print."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from orthoptim_experiments.harness.methods import PRECISIONS, RATE_COLOURS, UnknownMethodError, find

DASHES = {"solid": (), "dash": (5.0, 2.0), "dot": (1.0, 1.4), "dashdot": (5.0, 1.6, 1.0, 1.6)}
"""Lengths of ink and gap, in line widths."""

MARKERS = {
    "POGO": "circle",
    "RGD": "square",
    "RSDM": "diamond",
    "Landing": "triangle-up",
    "LandingPC": "triangle-down",
    "SLPG": "cross",
    "POGO-BB": "star",
    "POGO-root": "x",
    "POGO-argmin": "pentagon",
    "POGO-safe": "hexagon2",
    "POGO-strict": "octagon",
    "Adam": "triangle-right",
    "pogo-torch": "triangle-left",
    "geoopt": "hexagon",
    "torch-orthogonal": "star-diamond",
    "geotorch": "hourglass",
    "StiefelMuon": "star-square",
    "POGO-VAdam": "diamond-wide",
}
"""By plotly's names: in grey print, the marker tells a method."""

_NAMES = [*MARKERS.values(), "diamond-tall"]
MATPLOTLIB_MARKERS = dict(
    zip(_NAMES, [*"osD^vP*XpH8><h", "$\\clubsuit$", "$\\bowtie$", "$\\spadesuit$", "$\\diamondsuit$", "d"], strict=True)
)
GLYPHS = dict(zip(_NAMES, "●■◆▲▼✚★✖⬟⬣⯃▶◀⬢✦⧗✪⬥⬧", strict=True))

_OTHERS = (("#DDCC77", "diamond-tall"), ("#117733", "square"), ("#AA4499", "triangle-up"), ("#AA7744", "circle"))

_SPARE = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#0072B2", "#E69F00", "#009E73", "#CC79A7")
"""Colours of Tol and of Okabe & Ito for contenders whose own is taken, by another one of the same method."""


@dataclass(frozen=True)
class Style:
    """Label, colour, dashes (a key of `DASHES`) and marker (a value of `MARKERS`) of a method."""

    label: str
    colour: str
    dash: str
    marker: str

    @property
    def colour_on_dark(self) -> str:
        """The colour with as much white as it needs to be seen on a dark ground.

        Example:
            >>> Style("", "#000000", "solid", "circle").colour_on_dark, Style("", "#E69F00", "", "").colour_on_dark
            ('#7b7b7b', '#e69f00')
        """
        parts = [int(self.colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        while _luminance(parts) < 0.2:
            parts = [part + (1 - part) / 64 for part in parts]
        return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _luminance(parts: list[float]) -> float:
    """The relative luminance of the accessibility guidelines (WCAG 2), with a simple gamma."""
    weights = (0.2126, 0.7152, 0.0722)
    return sum((weight * math.pow(part, 2.2) for weight, part in zip(weights, parts, strict=True)), 0.0)


def style_of(name: str) -> Style:
    """The style of a method; a name that no method has always gets the same of a few others."""
    try:
        method = find(name)
    except UnknownMethodError:
        colour, marker = _OTHERS[sum(name.encode()) % len(_OTHERS)]
        return Style(name, colour, "dash", marker)
    name = name.partition(":")[0]
    plain = next((name.removesuffix(f"-{bits}") for bits in PRECISIONS if name.endswith(f"-{bits}")), name)
    return Style(method.label, method.colour, method.dash, MARKERS.get(plain, "circle"))


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """The styles of contenders that are seen together: no two are alike.

    A contender that sets options, such as ``POGO:lr=0.3``, has the colour of its method, the next one of that method
    another, as long as there are any; then other dashes and markers tell them apart.

    Example:
        >>> [style.colour for style in styles_of(["POGO:lr=0.3", "POGO:lr=0.5"]).values()]
        ['#D55E00', '#4477AA']
    """
    names = list(dict.fromkeys(names))
    styles = {name: style_of(name) for name in names if ":" not in name}
    for name in names:
        if name not in styles:
            styles[name] = _unlike(style_of(name), list(styles.values()))
    return {name: styles[name] for name in names}


def _unlike(style: Style, others: list[Style]) -> Style:
    """The style, or the first that none of the others has; colours of the paper's learning rates may come again."""
    colours, looks = {other.colour for other in others}, {_look(other) for other in others}
    if _look(style) not in looks and (style.colour not in colours or style.colour in RATE_COLOURS.values()):
        return style
    free = [colour for colour in _SPARE if colour not in colours]
    if free:
        return replace(style, colour=free[0])
    for marker, dash, colour in itertools.product(MARKERS.values(), DASHES, _SPARE):
        if (colour, dash, marker) not in looks:
            return replace(style, colour=colour, dash=dash, marker=marker)
    return style


def _look(style: Style) -> tuple[str, str, str]:
    return style.colour, style.dash, style.marker
