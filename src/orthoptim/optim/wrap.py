"""wrap: any torch optimizer, made orthogonal."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, StateDict

from orthoptim.base import SGD
from orthoptim.groups import Patterns, param_groups
from orthoptim.optim.orthoptimizer import Params
from orthoptim.optim.pogo import POGO
from orthoptim.optim.resume import check_saved
from orthoptim.optim.telemetry import Drift, Plan


def wrap(
    optimizer: Optimizer,
    constrained: Patterns | Params,
    *,
    model: nn.Module | None = None,
    landing: str = "safe",
) -> "Wrapped":
    """Let any optimizer propose its steps, and take them on the manifold.

    The displacement that ``optimizer`` makes of a constrained parameter becomes the direction of one POGO step with
    η = 1; unconstrained parameters keep the step they were given.

    Args:
        optimizer: any ``torch.optim.Optimizer``, of torch or not.
        constrained: shell patterns on the names of ``model``'s parameters with their views, as for
            :func:`param_groups`; or the parameters (or param groups with ``view`` and ``side``) themselves.
        model: the model, if ``constrained`` holds patterns.
        landing: how to land, see :class:`POGO`.

    Returns:
        An optimizer in its own right: schedulers see the param groups of the inner one, ``state_dict`` holds both.

    Example:
        >>> import orthoptim as oo
        >>> model = nn.Linear(4, 4)
        >>> _ = oo.orthogonalize_(model, {"weight": "matrix"})
        >>> opt = oo.wrap(torch.optim.NAdam(model.parameters(), lr=1e-2), {"weight": "matrix"}, model=model)
        >>> model(torch.ones(4)).square().sum().backward()
        >>> opt.step()
        >>> bool(oo.distance(model.weight) < 1e-5)
        True
    """
    if isinstance(constrained, Mapping):
        if model is None:
            raise TypeError("wrap with patterns needs the model whose parameters they name: wrap(..., model=model)")
        constrained = param_groups(model, constrained, lr=1.0)
    return Wrapped(optimizer, constrained, landing)


class Wrapped(Optimizer):
    """What :func:`wrap` returns."""

    inner: Optimizer
    lander: POGO

    def __init__(self, optimizer: Optimizer, constrained: Params, landing: str) -> None:
        lander = POGO(constrained, 1.0, SGD(), landing=landing)
        for group in lander.param_groups:
            group["lr"] = 1.0  # the step is the displacement, whatever the groups were made for
        owned = {param for group in optimizer.param_groups for param in group["params"]}
        strangers = [param for group in lander.param_groups for param in group["params"] if param not in owned]
        if strangers:
            count = sum(len(group["params"]) for group in lander.param_groups)
            shape = "×".join(map(str, strangers[0].shape))
            raise ValueError(
                f"the optimizer does not own {len(strangers)} of the {count} constrained parameters (the first is "
                f"{shape}): build it with them before wrapping"
            )
        # Optimizer.__init__ would make param groups of its own; these are the inner optimizer's.
        self.__setstate__({"inner": optimizer, "lander": lander, "defaults": optimizer.defaults})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of the inner optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """That of the inner optimizer."""
        return self.inner.state

    def __getattr__(self, name: str) -> Any:
        """What only the inner optimizer has, such as the ``train`` and ``eval`` of schedule-free ones."""
        if name.startswith("_") or "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies."""
        return {"inner": self.inner, "lander": self.lander, "defaults": self.defaults}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add unconstrained parameters to the inner optimizer."""
        self.inner.add_param_group(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Let the inner optimizer step, then take its displacement on the manifold."""
        params = [param for group in self.lander.param_groups for param in group["params"]]
        with torch.no_grad():
            before = [param.clone(memory_format=torch.preserve_format) for param in params]
        try:
            loss: float | None = self.inner.step() if closure is None else self.inner.step(closure)
        except BaseException:
            with torch.no_grad():
                for param, old in zip(params, before, strict=True):
                    param.copy_(old)
            raise
        self._refuse_new_shapes(params, before)
        self._land(params, before)
        return loss

    @torch.no_grad()
    def _land(self, params: list[Tensor], before: list[Tensor]) -> None:
        grads = [param.grad for param in params]
        try:
            for param, old in zip(params, before, strict=True):
                displacement = old - param
                param.copy_(old)
                param.grad = displacement
            self.lander._step_groups()
        finally:
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad

    @torch.no_grad()
    def _refuse_new_shapes(self, params: list[Tensor], before: list[Tensor]) -> None:
        changed = [i for i, (param, old) in enumerate(zip(params, before, strict=True)) if param.shape != old.shape]
        if not changed:
            return
        first = changed[0]
        shapes = f"{tuple(before[first].shape)} to {tuple(params[first].shape)}"
        for param, old in zip(params, before, strict=True):
            param.data = old
        raise RuntimeError(
            f"{type(self.inner).__name__} changed the shape of constrained parameter {first} from {shapes}: only its "
            "value may change in a step; the constrained parameters are as they were"
        )

    def state_dict(self) -> StateDict:
        """That of the inner optimizer, and under ``"landing"`` the counters and master copies of landing."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state_dict = {**self.inner.state_dict(), "landing": self.lander.state_dict()}
        for after in self._optimizer_state_dict_post_hooks.values():
            state_dict = after(self, state_dict) or state_dict
        return state_dict

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what :meth:`state_dict` returned."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        if "landing" not in state_dict:
            raise ValueError("loaded state dict has no 'landing': it was not saved by a wrapped optimizer")
        check_saved(self.lander.param_groups, state_dict["landing"])
        self.inner.load_state_dict({key: value for key, value in state_dict.items() if key != "landing"})
        self.lander.load_state_dict(state_dict["landing"])
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def plan(self) -> list[Plan]:
        """See :meth:`Orthoptimizer.plan`."""
        return self.lander.plan()

    def drift(self) -> list[Drift]:
        """See :meth:`Orthoptimizer.drift`."""
        return self.lander.drift()
