"""The pictures of the site, drawn from runs of the library: ``python docs/tools/figures.py FOLDER``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import orthoptim as oo

GREY = "#808080"  # for lines and text: legible on white and on black
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "orthoptim",
    "savefig.transparent": True,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
}

Optimizer = Callable[[torch.nn.Parameter], torch.optim.Optimizer]

# One rate for the methods that follow the gradient; RSDM moves r of n dimensions in a step and takes a longer one.
METHODS: dict[str, Optimizer] = {
    "POGO": lambda x: oo.POGO([x], lr=0.3, base=oo.SGD(momentum=0.5)),
    "RGD": lambda x: oo.RGD([x], lr=0.3, base=oo.SGD(momentum=0.5)),
    "RSDM": lambda x: oo.RSDM([x], lr=1.0, r=16, base=oo.SGD(momentum=0.5)),
    "Landing": lambda x: oo.Landing([x], lr=0.3, base=oo.SGD(momentum=0.5)),
    "LandingPC": lambda x: oo.LandingPC([x], lr=0.3, lam=1.0),
    "SLPG": lambda x: oo.SLPG([x], lr=0.3),
    "StiefelMuon": lambda x: oo.StiefelMuon([x], lr=0.02),
}
BASES: dict[str, Optimizer] = {
    "SGD": lambda x: oo.POGO([x], lr=1.0, base=oo.SGD(momentum=0.5)),
    "VAdam": lambda x: oo.POGO([x], lr=0.3, base=oo.VAdam()),
    "Adam": lambda x: oo.POGO([x], lr=0.03, base=oo.Adam()),
    "Muon": lambda x: oo.POGO([x], lr=0.1, base=oo.Muon()),
    "BB": lambda x: oo.POGO([x], base=oo.BB()),
    "CG": lambda x: oo.POGO([x], base=oo.CG()),
    "LBFGS": lambda x: oo.POGO([x], base=oo.LBFGS()),
}


@contextmanager
def svg(path: Path, width: float = 7.0, height: float = 2.8, panels: int = 2) -> Iterator[list[Axes]]:
    """Axes side by side, saved as a drawing that is the same in every build."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        yield list(axes)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def procrustes(make: Optimizer, steps: int = 150) -> tuple[list[float], list[float]]:
    """Relative gap and distance after each step of a Procrustes problem of 32×32, min ‖AX − B‖²/(2p), in float32."""
    generator = torch.Generator().manual_seed(0)
    p = 32
    a, b = (torch.randn(p, p, generator=generator) for _ in range(2))
    a = a / torch.linalg.matrix_norm(a, 2) + torch.eye(p)  # well conditioned: the curves are of the methods
    u, _, v = torch.linalg.svd(a.mT @ b)
    best = float((a @ (u @ v) - b).square().sum()) / (2 * p)
    skew = torch.randn(p, p, generator=generator) * (0.6 / p**0.5)
    start = u @ v @ torch.matrix_exp(skew - skew.mT)
    x = torch.nn.Parameter(oo.project_(start.clone()))
    optimizer = make(x)
    gaps, distances = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (a @ x - b).square().sum() / (2 * p)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            gap = float((a @ oo.project_(x.detach().clone()) - b).square().sum()) / (2 * p) - best
        gaps.append(max(gap / best, 1e-8))
        distances.append(max(float(oo.distance(x)), 1e-8))
    return gaps, distances


def draw_runs(folder: Path, runs: dict[str, Optimizer], prefix: str) -> None:
    """One drawing for each name: its curves in colour, those of the others in grey."""
    curves = {name: procrustes(make) for name, make in runs.items()}
    for chosen in curves:
        with svg(folder / f"{prefix}-{chosen.lower()}.svg") as (left, right):
            for name, (gaps, distances) in curves.items():
                style = (
                    {"color": "#2a7de1", "lw": 2, "zorder": 3}
                    if name == chosen
                    else {"color": GREY, "lw": 0.7, "alpha": 0.6}
                )
                for axis, values in ((left, gaps), (right, distances)):
                    axis.semilogy(range(1, len(values) + 1), values, label=name if name == chosen else None, **style)
            left.set(xlabel="step", ylabel="relative gap to the optimum")
            right.set(xlabel="step", ylabel="distance ‖XXᴴ − I‖_F")
            left.legend(frameon=False)


def draw_leap_and_land(path: Path) -> None:
    """One step on the circle: the leap along the tangent, and the landing towards the centre."""
    x, direction, eta = np.array([np.cos(0.6), np.sin(0.6)]), np.array([-np.sin(0.6), np.cos(0.6)]), 0.75
    m = x + eta * direction
    landed = m - 0.5 * (m @ m - 1) * m
    with svg(path, 7.0, 3.2) as (left, right):
        angle = np.linspace(-0.1, 1.9, 200)
        left.plot(np.cos(angle), np.sin(angle), color=GREY, lw=1)
        arrow = {"arrowstyle": "->", "lw": 2, "shrinkA": 0, "shrinkB": 0}
        left.annotate("", m, x, arrowprops={**arrow, "color": "#2a7de1"})
        left.annotate("", landed, m, arrowprops={**arrow, "color": "#e07b39"})
        for point, text, shift in (
            (x, "X", (0.03, -0.09)),
            (m, "M = X − ηR", (0.04, 0.0)),
            (landed, "X⁺", (-0.13, -0.07)),
        ):
            left.plot(*point, "o", color=GREY, ms=4)
            left.text(*(point + shift), text)
        left.text(*(0.5 * (x + m) + (0.05, 0)), "leap", color="#2a7de1")
        left.text(*(0.5 * (m + landed) + (-0.16, 0.02)), "land", color="#e07b39")
        left.set(aspect="equal", xticks=[], yticks=[], xlim=(-0.05, 1.25), ylim=(0.3, 1.35))
        left.grid(False)
        left.spines[:].set_visible(False)
        xi = np.logspace(-2, 0.15, 60)
        for steps, color in ((1, "#2a7de1"), (2, "#e07b39"), (3, "#3a9d5d")):
            c = xi**2
            for _ in range(steps):
                c = -0.75 * c**2 + 0.25 * c**3
            right.loglog(xi, np.maximum(-c, 1e-17), color=color, label=f"{steps} landing{'s' if steps > 1 else ''}")
        right.loglog(xi, 0.75 * xi**4, ":", color=GREY, label="¾ξ⁴")
        right.axhline(6e-8, color=GREY, lw=0.7, ls="--")
        right.text(1.1e-2, 9e-8, "rounding of float32", fontsize=7)
        right.set(xlabel="length ξ of the leap", ylabel="distance after landing", ylim=(1e-16, 2))
        right.legend(frameon=False, fontsize=8)


def draw_landing_map(path: Path) -> None:
    """What one landing does to an eigenvalue of MMᴴ, and the interval that it keeps."""
    with svg(path, 7.0, 2.8) as (left, right):
        c = np.linspace(-1, 2.2, 400)
        f = (1 - c / 2) ** 2 * (1 + c)
        left.plot(1 + c, f, color="#2a7de1")
        left.fill_between([0.5, 2], 0.5, 1, color="#3a9d5d", alpha=0.2, lw=0)
        left.plot([0.5, 2], [0.78125, 0.5], "o", color="#3a9d5d", ms=4)
        left.set(xlabel="eigenvalue of MMᴴ before landing", ylabel="after", ylim=(-0.05, 1.3))
        left.text(0.55, 0.53, "[½, 2] lands in [½, 1]", fontsize=8)
        delta = np.linspace(0, 0.5, 100)
        right.plot(
            delta, np.maximum(delta**2 * (3 + delta) / 4, 0.5), color="#2a7de1", label="τ = 1 (safe), one landing"
        )
        right.plot(
            delta,
            np.maximum(delta**2 * (3 + delta) / 4, 0.0625 * 2.75 / 4),
            color="#e07b39",
            label="τ = ½, one landing",
        )
        right.plot(delta, delta, ":", color=GREY, label="δ′ = δ")
        right.set(xlabel="δ before the step", ylabel="bound δ′ after it")
        right.legend(frameon=False, fontsize=8)


def draw_all(folder: Path) -> None:
    """Draw what is missing or older than this file."""
    stamp = folder / "drawn"
    if stamp.exists() and stamp.stat().st_mtime >= Path(__file__).stat().st_mtime:
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    draw_leap_and_land(folder / "leap-and-land.svg")
    draw_landing_map(folder / "landing-map.svg")
    draw_runs(folder, METHODS, "method")
    draw_runs(folder, BASES, "base")
    torch.set_num_threads(threads)
    stamp.touch()


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]))
