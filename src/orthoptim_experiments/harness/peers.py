"""What users have today, behind the interface of an optimizer of orthogonal parameters.

Each adapter holds its own points, in the form that the peer wants; a step hands it the gradients and copies the new
points back. Peers that are missing are imported only when they are asked for.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import orthoptim as oo
from orthoptim.views import View


def pogo_torch(params: Any, lr: float, base: oo.Base = oo.VAdam()) -> torch.optim.Optimizer:  # noqa: B008
    """The authors' own package, which wants matrices in a batch."""
    import pogo
    import pogo.base

    bases = {"SGD": pogo.base.SGD, "VAdam": pogo.base.VectorAdam}
    if type(base).__name__ not in bases:
        raise ValueError(f"pogo-torch has no base {type(base).__name__!r}; use {' or '.join(bases)}")
    inner = bases[type(base).__name__](**base.hyperparameters)

    def batched(matrix: Tensor) -> Tensor:
        return matrix[None] if matrix.ndim == 2 else matrix

    optimizer: torch.optim.Optimizer = pogo.POGO(params, inner, lr, check_size=False, flatten_fn=batched)
    return optimizer


class Adapter(torch.optim.Optimizer):
    """Steps the matrices of parameters with an optimizer of other points.

    Args:
        params: parameters or param groups, which may have a ``view``.
        lr: the learning rate of the inner optimizer; it follows that of the groups.
    """

    inner: torch.optim.Optimizer

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "view": "matrix"})
        self.places = [
            (group, param, part)
            for group in self.param_groups
            for param in group["params"]
            for part in View.of(group["view"]).parts(param.shape)
        ]
        self.attach([part.matrices(param.detach()) for _, param, part in self.places], lr)

    def attach(self, matrices: list[Tensor], lr: float) -> None:
        """Make the inner optimizer, and points of its own that stand for the matrices (..., p, n)."""
        raise NotImplementedError

    def exchange(self, grads: list[Tensor]) -> list[Tensor]:
        """Step along gradients of the matrices, and return the new matrices."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of all parameters, which must all have gradients."""
        for mine, theirs in zip(self.param_groups, self.inner.param_groups, strict=False):
            theirs["lr"] = mine["lr"]
        grads = [part.matrices(param.grad) for _, param, part in self.places if param.grad is not None]
        for (_, param, part), matrices in zip(self.places, self.exchange(grads), strict=True):
            part.write_(param, matrices)

    def state_dict(self) -> dict[str, Any]:
        """The groups, and all that the peer keeps."""
        return {**super().state_dict(), "inner": self.inner.state_dict(), "points": self.points_state()}

    def points_state(self) -> list[Any]:
        """The peer's own points, to be saved."""
        raise NotImplementedError

    def load_points(self, points: list[Any]) -> None:
        """The inverse of :meth:`points_state`."""
        raise NotImplementedError

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.inner.load_state_dict(state_dict["inner"])
        self.load_points(state_dict["points"])


class Geoopt(Adapter):
    """Riemannian Adam on geoopt's Stiefel manifold, of orthonormal columns."""

    def attach(self, matrices: list[Tensor], lr: float) -> None:
        """See :meth:`Adapter.attach`."""
        import geoopt

        manifold = geoopt.EuclideanStiefel()
        self.points = [geoopt.ManifoldParameter(x.mT.clone(), manifold=manifold) for x in matrices]
        self.inner = geoopt.optim.RiemannianAdam(self.points, lr=lr)

    def exchange(self, grads: list[Tensor]) -> list[Tensor]:
        """See :meth:`Adapter.exchange`."""
        for point, grad in zip(self.points, grads, strict=True):
            point.grad = grad.mT.contiguous()
        self.inner.step()
        return [point.detach().mT for point in self.points]

    def points_state(self) -> list[Any]:
        """See :meth:`Adapter.points_state`."""
        return [point.detach().clone() for point in self.points]

    def load_points(self, points: list[Any]) -> None:
        """See :meth:`Adapter.load_points`."""
        for point, saved in zip(self.points, points, strict=True):
            point.copy_(saved)


class Parametrized(Adapter):
    """Adam on torch's orthogonal parametrization: forward, backward through it, and the step."""

    def constrain(self, module: nn.Module, start: Tensor) -> None:
        """Parametrize ``module.weight`` by something unconstrained that maps to the start."""
        parametrizations.orthogonal(module, "weight", use_trivialization=False)

    def attach(self, matrices: list[Tensor], lr: float) -> None:
        """See :meth:`Adapter.attach`."""
        self.modules: list[Any] = []
        for x in matrices:
            module: Any = nn.Module()
            module.weight = nn.Parameter(x.mT.clone())
            self.constrain(module, x.mT)
            self.modules.append(module)
        self.inner = torch.optim.Adam([raw for module in self.modules for raw in module.parameters()], lr=lr)

    def exchange(self, grads: list[Tensor]) -> list[Tensor]:
        """See :meth:`Adapter.exchange`."""
        self.inner.zero_grad()
        with torch.enable_grad():
            torch.autograd.backward([module.weight for module in self.modules], [grad.mT for grad in grads])
        self.inner.step()
        return [module.weight.detach().mT for module in self.modules]

    def points_state(self) -> list[Any]:
        """See :meth:`Adapter.points_state`."""
        return [module.state_dict() for module in self.modules]

    def load_points(self, points: list[Any]) -> None:
        """See :meth:`Adapter.load_points`."""
        for module, saved in zip(self.modules, points, strict=True):
            module.load_state_dict(saved)


class Geotorch(Parametrized):
    """Adam on geotorch's parametrization of the Stiefel manifold, of orthonormal columns."""

    def constrain(self, module: nn.Module, start: Tensor) -> None:
        """See :meth:`Parametrized.constrain`."""
        import geotorch

        geotorch.orthogonal(module, "weight")
        module.weight = start
