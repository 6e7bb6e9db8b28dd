"""Problems in one orthogonal matrix with a known optimum: what PCA and Procrustes share."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import orthoptim as oo
from orthoptim_experiments.harness.experiment import Config, Outcome, Problem, left_manifold
from orthoptim_experiments.harness.methods import Options, pogo_family

# A loss this many times that of the start or of the optimum has diverged.
_DIVERGED = 1e3


FULL = 2000
"""The n that the paper's hyperparameters were tuned at."""


class MatrixProblem(Problem):
    """Minimise f over matrices X (p×n) with orthonormal rows.

    A step uses the gradient at the point where the last one ended, and leaves the gradient at its own end behind: so
    the value there is a by-product.

    Convergence is that of the *projected* iterate, the nearest orthogonal matrix: a point off the manifold may lie on
    the level of the optimum by accident, or below it. It is measured, untimed, at every record and at every step whose
    own gap is below the tolerance.

    Args:
        config: with ``budget`` (steps), ``tolerance`` (of the gap) and ``stride`` (steps between records).
        start: where to begin; not changed.
        optimum: the least value of f.
    """

    def __init__(self, config: Config, start: Tensor, optimum: float) -> None:
        self.x = torch.nn.Parameter(start.clone())
        self.optimum = optimum
        self.budget: int = config["budget"]
        self.stride: int = config["stride"]
        self.tolerance: float = config["tolerance"]
        self.too_far = math.inf
        self._projected: tuple[tuple[int, float], float, float] = ((-1, math.nan), math.nan, math.nan)

    @abstractmethod
    def differentiate(self) -> None:
        """Set the gradient at X, and keep what :meth:`value` needs."""

    @abstractmethod
    def value(self) -> float:
        """F(X), summed in double precision, from what :meth:`differentiate` left."""

    @abstractmethod
    def value_at(self, x: Tensor) -> float:
        """F at an orthogonal matrix given in double precision, to full accuracy."""

    def parameters(self) -> list[Tensor]:
        """The matrix."""
        return [self.x]

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """See :meth:`Problem.begin`."""
        super().begin(optimizer)
        self.differentiate()
        self.too_far = _DIVERGED * max(abs(self.value()), abs(self.optimum))

    def advance(self) -> None:
        """See :meth:`Problem.advance`."""
        with self.stepping:
            self.optimizer.step()
        self.differentiate()
        self.step += 1

    def due(self) -> bool:
        """Every ``stride`` steps."""
        return self.step % self.stride == 0

    def gap(self, value: float) -> float:
        """|f − f*|/|f*|."""
        return abs(value - self.optimum) / abs(self.optimum)

    @torch.no_grad()
    def projected(self) -> tuple[float, float]:
        """The gap of the nearest orthogonal matrix, and the distance ‖XXᵀ − I‖; computed once for a point."""
        point = (self.step, self.value())
        if self._projected[0] != point:
            nearest, away = _nearest(self.x.detach().double())
            gap = self.gap(self.value_at(nearest)) if math.isfinite(away) else math.nan
            self._projected = (point, gap, away)
        return self._projected[1:]

    def evaluate(self) -> dict[str, float]:
        """Loss, gap, gap of the nearest orthogonal matrix, and the distance to it."""
        value, (projected, away) = self.value(), self.projected()
        return {
            "loss": value,
            "gap": self.gap(value),
            "projected_gap": projected,
            "distance": away,
            "max_distance": away,
        }

    def outcome(self) -> Outcome | None:
        """See :meth:`Problem.outcome`."""
        value = self.value()
        if not abs(value) < self.too_far:  # nan as well
            return Outcome("diverged", f"the loss is {value:.3g} after {self.step} steps")
        if lost := left_manifold(self.optimizer, self.step):
            return lost
        looks_converged = self.due() or self.gap(value) < self.tolerance
        if looks_converged and self.projected()[0] < self.tolerance:
            return Outcome("converged")
        return Outcome("budget") if self.step >= self.budget else None

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Problem.state_dict`."""
        return {"step": self.step, "x": self.x.detach(), "optimizer": _optimizer_state(self.optimizer)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Problem.load_state_dict`."""
        _load_optimizer_state(self.optimizer, state["optimizer"])
        self.x.copy_(state["x"])
        self.step = state["step"]
        self.differentiate()


def _nearest(x: Tensor) -> tuple[Tensor, float]:
    """The nearest orthogonal matrix and ‖XXᵀ − I‖; near the manifold by products, as an SVD of 2000×2000 takes long."""
    identity = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    first = math.nan
    for _ in range(8):
        error = identity - x @ x.mT
        away = float(error.norm())
        first = away if math.isnan(first) else first
        if not away <= 0.9:
            break
        x = torch.addmm(x, error, x, alpha=0.5)
        if away * away < 1e-12 * x.shape[-2]:  # one such step squares the distance
            return x, first
    return (oo.project_(x.clone()) if math.isfinite(first) else x), first


def start(p: int, n: int, generator: torch.Generator) -> Tensor:
    """A uniformly random start in double precision."""
    return oo.orthogonalize_(torch.empty(p, n, dtype=torch.float64), init="random", generator=generator)


def hyperparameters(
    n: int, pogo: Options, *, rgd: float, rsdm: tuple[float, int], landingpc: tuple[float, float], slpg: float
) -> dict[str, Options]:
    """Those of the paper, tuned at n = 2000 and scaled to n; and of what users have today: Adam at one rate.

    RSDM's r is a share of n. The length of LandingPC's steps is η whatever the gradient, while distances on the
    manifold grow as √n. All else is set by the spectrum of the problem, which does not depend on n.

    Args:
        n: the columns of the matrix.
        pogo: POGO's, with every landing and for the authors' package; Landing has its learning rate.
        rgd: learning rate.
        rsdm: learning rate, and r.
        landingpc: learning rate, and λ.
        slpg: learning rate.
    """
    return {
        **pogo_family(pogo),
        "StiefelMuon": {"lr": 0.01},
        "pogo-torch": pogo,
        **{name: {"lr": 0.03} for name in ("geoopt", "torch-orthogonal", "geotorch")},
        "RGD": {"lr": rgd},
        "RSDM": {"lr": rsdm[0], "r": max(2, round(rsdm[1] * n / FULL))},
        "Landing": {"lr": pogo["lr"], "base": "SGD", "momentum": 0.1},
        "LandingPC": {"lr": landingpc[0] * (n / FULL) ** 0.5, "lam": landingpc[1]},
        "SLPG": {"lr": slpg},
    }


def _optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimizer without what cannot be saved safely (functions in the groups of a peer)."""
    state = optimizer.state_dict()
    groups = [{key: value for key, value in group.items() if not callable(value)} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def _load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """The inverse of :func:`_optimizer_state`: what was not saved stays as it is."""
    groups = zip(optimizer.state_dict()["param_groups"], state["param_groups"], strict=True)
    optimizer.load_state_dict({**state, "param_groups": [{**own, **saved} for own, saved in groups]})
