"""The methods that experiments compare: by which name, in which colour, and how each is built from plain options."""

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

import orthoptim as oo

Options = Mapping[str, Any]
"""Plain values, as results keep them: ``lr``, options of the method, ``base`` (a name), hyperparameters of the base."""

Params = Any
"""Parameters or param groups."""

Dash = Literal["solid", "dash", "dot", "dashdot"]

BASES: dict[str, type[oo.Base]] = {base.__name__: base for base in (oo.SGD, oo.VAdam, oo.Adam, oo.Muon, oo.BB)}

# Products of matrices in another precision than the experiment's own: part of a method's name, as in "RSDM-fp64".
PRECISIONS: dict[str, tuple[str, Dash]] = {
    "fp16": ("16-bit products", "dot"),
    "fp32": ("32 bits", "solid"),
    "fp64": ("64 bits", "dash"),
}

# Learning rates of a sweep, in Tol's bright colours: part of a method's name, as in "POGO-root η=.001".
RATES = {".001": "#4477AA", ".005": "#66CCEE", ".007": "#228833", ".010": "#CCBB44", ".025": "#EE6677"}


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
    """

    name: str
    summary: str
    make: Callable[..., torch.optim.Optimizer]
    colour: str
    dash: Dash = "solid"
    label: str = ""
    fixed: Mapping[str, Any] | None = None
    peer: str = ""

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
        options = {**options, **(self.fixed or {})}
        own = inspect.signature(self.make).parameters
        if "base" in options:
            options["base"] = _base(options, own)
        unknown = options.keys() - own.keys()
        if unknown:
            known = ", ".join(name for name in own if name != "params")
            raise ValueError(f"{self.name} has no option {sorted(unknown)[0]!r}; there are {known}")
        return self.make(params, **options)


def _base(options: dict[str, Any], own: Mapping[str, Any]) -> oo.Base:
    """The base optimizer that options name, its hyperparameters taken out of them."""
    name = options["base"]
    if name not in BASES:
        raise ValueError(f"unknown base {name!r}; there are {', '.join(BASES)}")
    names = inspect.signature(BASES[name].__init__).parameters.keys() - {"self"} - own.keys()
    return BASES[name](**{key: options.pop(key) for key in names if key in options})


def _pogo_torch(params: Params, lr: float, base: oo.Base = oo.VAdam()) -> torch.optim.Optimizer:  # noqa: B008
    """The authors' own package, which wants matrices in a batch."""
    import pogo
    import pogo.base

    bases = {"SGD": pogo.base.SGD, "VAdam": pogo.base.VectorAdam}
    if type(base).__name__ not in bases:
        raise ValueError(f"pogo-torch has no base {type(base).__name__!r}; use {' or '.join(bases)}")
    inner = bases[type(base).__name__](**base.hyperparameters)

    def batched(matrix: torch.Tensor) -> torch.Tensor:
        return matrix[None] if matrix.ndim == 2 else matrix

    optimizer: torch.optim.Optimizer = pogo.POGO(params, inner, lr, check_size=False, flatten_fn=batched)
    return optimizer


def _sgdg(params: Params, lr: float, momentum: float = 0.9) -> torch.optim.Optimizer:
    """Cayley SGD with the defects of the programs that are passed around."""
    from orthoptim_experiments.problems.rotations.sgdg import SGDG

    return SGDG(params, lr, momentum)


def _nothing(params: Params) -> torch.optim.Optimizer:
    """For contenders that learn nothing."""
    return torch.optim.SGD(params, lr=0.0)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("POGO", "leap along the relative gradient, land back; products only", oo.POGO, "#D55E00"),
        Method("RGD", "Riemannian gradient descent with a QR retraction", oo.RGD, "#0072B2"),
        Method("RSDM", "Riemannian descent on random submanifolds of dimension r", oo.RSDM, "#CC79A7"),
        Method("Landing", "infeasible: a field that pulls towards the manifold", oo.Landing, "#009E73"),
        Method("LandingPC", "Landing with VAdam and a fixed step, for circuits", oo.LandingPC, "#56B4E9"),
        Method("SLPG", "a tangent step and one approximate polar step", oo.SLPG, "#E69F00"),
        Method("POGO-BB", "POGO with Barzilai–Borwein step lengths", oo.POGO, "#882255", fixed={"base": "BB"}),
        Method("POGO-half", "POGO landing with λ = ½, unclipped", oo.POGO, "#CC6677", "dot", fixed={"landing": "half"}),
        Method(
            "POGO-root", "POGO landing by the quartic's root", oo.POGO, "#999933", "dash", fixed={"landing": "root"}
        ),
        Method("POGO-argmin", "POGO landing with the best λ", oo.POGO, "#44AA99", "dash", fixed={"landing": "argmin"}),
        Method("POGO-safe", "POGO landing with λ = ½, clipped", oo.POGO, "#AA3377", fixed={"landing": "safe"}),
        Method(
            "POGO-strict",
            "POGO landing three times: within 1.5e-6 for any gradient",
            oo.POGO,
            "#332288",
            "dash",
            fixed={"landing": "strict"},
        ),
        Method("POGO-SGD", "POGO with momentum", oo.POGO, "#117733", "dash", fixed={"base": "SGD"}),
        Method("StiefelMuon", "matrix sign of the tangent momentum, landed", oo.StiefelMuon, "#AA4499"),
        Method(
            "RGD-cayley",
            "Riemannian gradient descent by Cayley's transform",
            oo.RGD,
            "#88CCEE",
            fixed={"retraction": "cayley"},
        ),
        Method("SGDG", "Cayley SGD as programs pass it around", _sgdg, "#DDCC77", "dash"),
        Method("none", "no rotation", _nothing, "#000000"),
        Method("random", "random orthogonal matrices", _nothing, "#666666"),
        Method("hadamard", "random Hadamard matrices", _nothing, "#BBBBBB"),
        Method("Adam", "unconstrained, for reference", torch.optim.Adam, "#000000", "dot"),
        Method("pogo-torch", "the authors' POGO (peer)", _pogo_torch, "#888888", "dashdot", peer="pogo"),
    )
}

PAPER = ("POGO", "RGD", "RSDM", "Landing", "LandingPC", "SLPG")
"""The six the paper compares."""


def find(name: str) -> Method:
    """The method of that name, which may end in a precision or a learning rate.

    Example:
        >>> find("RSDM-fp64").label, find("RSDM-fp64").colour == find("RSDM").colour
        ('RSDM, 64 bits', True)
    """
    if name in METHODS:
        return METHODS[name]
    plain, _, ending = name.partition(" η=")
    if plain in METHODS and ending in RATES:
        return replace(METHODS[plain], name=name, label=name, colour=RATES[ending])
    match = re.fullmatch(f"(.+)-({'|'.join(PRECISIONS)})", name)
    if match is None or match[1] not in METHODS:
        raise UnknownMethodError(f"unknown method {name!r}; there are {', '.join(METHODS)}")
    words, dash = PRECISIONS[match[2]]
    method = METHODS[match[1]]
    return replace(method, name=name, label=f"{method.label}, {words}", dash=dash)


def check(name: str, options: Options) -> None:
    """Raise ValueError, naming the method, for options it cannot be built with."""
    point = torch.nn.Parameter(torch.eye(1, 1 << 14))
    try:
        find(name).build([point], options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from None
