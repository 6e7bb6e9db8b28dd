"""The style of each method in figures and on pages: label, colour, dashes, and a marker for grey print."""

import math
from dataclasses import dataclass

from orthoptim_experiments.harness.methods import PRECISIONS, UnknownMethodError, find

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
