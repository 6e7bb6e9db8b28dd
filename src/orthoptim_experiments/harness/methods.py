"""The methods that experiments compare: by which name, in which colour, and how each is built from plain options.

A name may set options, after colons: ``POGO:lr=0.3:momentum=0`` is a contender of its own beside ``POGO``.
"""

import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

import orthoptim as oo
from orthoptim_experiments.harness import peers

Options = Mapping[str, Any]
"""Plain values, as results keep them: ``lr``, options of the method, ``base`` (a name), hyperparameters of the base."""

Params = Any
"""Parameters or param groups."""

Dash = Literal["solid", "dash", "dot", "dashdot"]

BASES: dict[str, type[oo.Base]] = {
    base.__name__: base for base in (oo.SGD, oo.VAdam, oo.Adam, oo.Muon, oo.BB, oo.CG, oo.LBFGS)
}

# Products of matrices in another precision than the experiment's own: part of a method's name, as in "RSDM-fp64".
PRECISIONS: dict[str, tuple[str, Dash]] = {
    "fp16": ("16-bit products", "dot"),
    "fp32": ("32 bits", "solid"),
    "fp64": ("64 bits", "dash"),
}

RATES = ("0.001", "0.005", "0.007", "0.01", "0.025")
"""The learning rates of the paper's sweep."""

RATE_COLOURS = dict(zip(RATES, ("#4477AA", "#66CCEE", "#228833", "#CCBB44", "#EE6677"), strict=True))
"""Tol's bright colours."""


class UnknownMethodError(ValueError):
    """A name that no method has; the message is one line for the user."""


@dataclass(frozen=True)
class Method:
    """A method as users see it.

    Attributes:
        name: in commands and results.
        summary: one line on what it is.
        make: its class, or a function that builds it.
        colour: from the palettes of Okabe & Ito and of Tol, which the colour-blind can tell apart.
        dash: of its lines.
        label: in figures; the name unless given.
        fixed: options that make it what it is.
        peer: the module it needs beyond our own; empty if none.
        defaults: its options in experiments that have none for it: those of a plugin's method.
    """

    name: str
    summary: str
    make: Callable[..., torch.optim.Optimizer]
    colour: str
    dash: Dash = "solid"
    label: str = ""
    fixed: Mapping[str, Any] | None = None
    peer: str = ""
    defaults: Options | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    @property
    def installed(self) -> bool:
        """Whether it can be used here."""
        return not self.peer or importlib.util.find_spec(self.peer) is not None

    def options(self) -> dict[str, Any]:
        """The names of its own options and their defaults, without those of its base optimizer."""
        fixed = self.fixed or {}
        hidden = {"params", *fixed, *(["landing_steps"] if "landing" in fixed else [])}
        parameters = inspect.signature(self.make).parameters.values()
        return {option.name: option.default for option in parameters if option.name not in hidden}

    def build(self, params: Params, options: Options) -> torch.optim.Optimizer:
        """The optimizer.

        Raises:
            ValueError: for options it does not have, or that make no sense.
        """
        for name, value in (self.fixed or {}).items():
            if options.get(name, value) != value:
                raise ValueError(f"{parse(self.name)[0]} is the one whose {name} is {value!r}; choose another method")
        options = {**options, **(self.fixed or {})}
        own = inspect.signature(self.make).parameters
        if "base" in options:
            options["base"] = _base(options, own)
        unknown = options.keys() - own.keys()
        if unknown:
            known = ", ".join(name for name in own if name != "params")
            raise ValueError(f"{parse(self.name)[0]} has no option {sorted(unknown)[0]!r}; there are {known}")
        return self.make(params, **options)


def _base(options: dict[str, Any], own: Mapping[str, Any]) -> oo.Base:
    """The base optimizer that options name, its hyperparameters taken out of them."""
    name = options["base"]
    if name not in BASES:
        raise ValueError(f"unknown base {name!r}; there are {', '.join(BASES)}")
    names = inspect.signature(BASES[name].__init__).parameters.keys() - {"self"} - own.keys()
    return BASES[name](**{key: options.pop(key) for key in names if key in options})


def _pogo(ending: str, summary: str, colour: str, dash: Dash, **fixed: Any) -> Method:
    return Method(f"POGO{ending}", summary, oo.POGO, colour, dash, fixed=fixed)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _pogo("", "the paper's: leap along the relative gradient, land with λ = ½", "#D55E00", "solid", landing="half"),
        Method("RGD", "Riemannian gradient descent with a QR retraction", oo.RGD, "#0072B2"),
        Method("RSDM", "Riemannian descent on random submanifolds of dimension r", oo.RSDM, "#CC79A7"),
        Method("Landing", "infeasible: a field that pulls towards the manifold", oo.Landing, "#009E73"),
        Method("LandingPC", "Landing with VAdam and a fixed step, for circuits", oo.LandingPC, "#56B4E9"),
        Method("SLPG", "a tangent step and one approximate polar step", oo.SLPG, "#E69F00"),
        _pogo("-BB", "with Barzilai–Borwein step lengths", "#882255", "solid", base="BB", landing="strict"),
        _pogo("-root", "landing by the quartic's root", "#999933", "dash", landing="root"),
        _pogo("-argmin", "landing with the best λ", "#44AA99", "dash", landing="argmin"),
        _pogo("-safe", "λ = ½, leaps clipped: within ½ for any gradient", "#AA3377", "solid", landing="safe"),
        _pogo("-strict", "landing thrice: within 1.5e-6 for any gradient", "#332288", "dash", landing="strict"),
        _pogo("-VAdam", "with VAdam, leaps clipped", "#4477AA", "dashdot", base="VAdam"),
        Method(
            "StiefelMuon", "spectral steps: every direction turns by the same angle", oo.StiefelMuon, "#661100", "dot"
        ),
        Method("Adam", "unconstrained, for reference", torch.optim.Adam, "#000000", "dot"),
        Method("pogo-torch", "the authors' POGO (peer)", peers.pogo_torch, "#888888", "dashdot", peer="pogo"),
        Method("geoopt", "geoopt's RiemannianAdam (peer)", peers.Geoopt, "#DDCC77", "dashdot", peer="geoopt"),
        Method(
            "torch-orthogonal", "torch's orthogonal parametrization, Adam", peers.Parametrized, "#117733", "dashdot"
        ),
        Method(
            "geotorch", "geotorch's parametrization, Adam (peer)", peers.Geotorch, "#AA4499", "dot", peer="geotorch"
        ),
    )
}

STANDARD = tuple(METHODS)
"""Those that are known before an experiment or a plugin adds its own."""

LANDINGS = ("POGO-safe", "POGO-strict", "POGO-root", "POGO-argmin")
"""The paper's POGO, but for the landing."""

_OF_THE_LIBRARY = (oo.POGO, oo.RGD, oo.RSDM, oo.Landing, oo.LandingPC, oo.SLPG, oo.StiefelMuon)

PAPER = ("POGO", "RGD", "RSDM", "Landing", "LandingPC", "SLPG")
"""The six the paper compares."""


def pogo_family(options: Options) -> dict[str, Options]:
    """POGO and each other landing with the same options; and POGO-BB, which needs none."""
    return {"POGO": options, **dict.fromkeys(LANDINGS, options), "POGO-BB": {}}


def parse(name: str) -> tuple[str, dict[str, Any]]:
    """The method that a name begins with, and the options that it sets.

    Example:
        >>> parse("POGO:lr=0.3:base=SGD")
        ('POGO', {'lr': 0.3, 'base': 'SGD'})
    """
    plain, *settings = name.split(":")
    options: dict[str, Any] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not (option and equals):
            raise UnknownMethodError(f"cannot read {name!r}; write METHOD:OPTION=VALUE, such as POGO:lr=0.3")
        try:
            options[option] = json.loads(value)
        except (ValueError, RecursionError):
            options[option] = value
    return plain, options


def find(name: str) -> Method:
    """The method of that name, which may end in a precision, and set options.

    Example:
        >>> find("RSDM-fp64").label, find("RSDM-fp64").colour == find("RSDM").colour
        ('RSDM, 64 bits', True)
        >>> find("POGO:lr=0.3").label
        'POGO, lr 0.3'
    """
    if name in METHODS:
        return METHODS[name]
    plain, settings = parse(name)
    if settings:
        method = find(plain)
        words = ", ".join(f"{option} {value}" for option, value in settings.items())
        colour = RATE_COLOURS.get(str(settings.get("lr")), method.colour)
        return replace(method, name=name, label=f"{method.label}, {words}", colour=colour)
    match = re.fullmatch(f"(.+)-({'|'.join(PRECISIONS)})", name)
    if match is None or match[1] not in METHODS:
        raise UnknownMethodError(f"unknown method {name!r}; there are {', '.join(METHODS)}")
    words, dash = PRECISIONS[match[2]]
    method = METHODS[match[1]]
    return replace(method, name=name, label=f"{method.label}, {words}", dash=dash)


def check(name: str, options: Options) -> None:
    """Raise ValueError, naming the method, for options it cannot be built with."""
    width = 1 << 14 if find(name).make in _OF_THE_LIBRARY else 4  # wide, as r may be large; a parametrization is n×n
    point = torch.nn.Parameter(torch.eye(1, width))
    try:
        find(name).build([point], options)
    except (ValueError, TypeError, ImportError) as error:
        raise ValueError(f"{name}: {error}") from None
