"""wrap: any torch optimizer, made orthogonal."""

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, StateDict

from orthoptim.base import SGD
from orthoptim.engine.naming import has_names, names_of, parameter_name
from orthoptim.engine.state import apart
from orthoptim.engine.telemetry import DriftTable, Plan
from orthoptim.groups import Patterns, param_groups
from orthoptim.literals import LandingPolicy
from orthoptim.optim.finite_gradients import FiniteGradients
from orthoptim.optim.inner import check_inner, step_inner
from orthoptim.optim.orthoptimizer import Params
from orthoptim.optim.pogo import POGO
from orthoptim.optim.positions import Positions

_PREFIX = "landing_"  # of the state of landing in the state dict of a wrapped optimizer


def wrap(
    optimizer: Optimizer,
    constrained: Patterns | Params,
    *,
    model: nn.Module | None = None,
    landing: LandingPolicy = "safe",
) -> "Wrapped":
    """Make any optimizer keep constrained parameters on the manifold.

    ``optimizer`` takes its step; the displacement of a constrained parameter becomes the direction of one POGO step,
    with η = 1. Other parameters keep the step of ``optimizer``.

    A matrix whose gradient is not finite keeps its value for that step and is counted as skipped; ``optimizer`` is
    given a gradient of zero for it, so that its state stays finite.

    If constrained parameters are replaced in the param groups before their first step, as ``accelerate`` does when it
    shards a model, the new tensors are constrained instead; after the first step that is an error.

    Args:
        optimizer: any ``torch.optim.Optimizer``, except schedule-free ones, whose ``eval()`` writes averages that are
            not orthogonal into the parameters.
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
    check_inner(optimizer)
    if isinstance(constrained, Mapping):
        if model is None:
            raise TypeError("wrap with patterns needs the model whose parameters they name: wrap(..., model=model)")
        constrained = param_groups(model, constrained, lr=1.0, rest=None)
    return Wrapped(optimizer, constrained, landing)


class JointState(MutableMapping[Any, Any]):
    """The state of the inner optimizer, which is written to; that of landing can be read under prefixed names."""

    def __init__(self, inner: MutableMapping[Any, Any], landing: Mapping[Any, Mapping[str, Any]]) -> None:
        self._inner, self._landing = inner, landing

    def __getitem__(self, key: Any) -> Any:
        inner, landing = self._inner[key], self._landing.get(key, {})
        if not inner or not landing:
            return inner
        return ChainMap(inner, {_PREFIX + name: value for name, value in landing.items()})

    def __setitem__(self, key: Any, value: Any) -> None:
        self._inner[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._inner[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


class Wrapped(Optimizer):
    """What :func:`wrap` returns."""

    inner: Optimizer
    lander: POGO
    _positions: Positions

    def __init__(self, optimizer: Optimizer, constrained: Params, landing: LandingPolicy) -> None:
        groups = _listed(constrained)
        _refuse_strangers(optimizer, groups)  # before POGO repairs those that are nearly orthonormal
        lander = POGO(groups, 1.0, SGD(), landing=landing)
        for group in lander.param_groups:
            group["lr"] = 1.0  # the step is the displacement, whatever the groups were made for
        positions = Positions(optimizer.param_groups, _params(lander))
        defaults = dict(optimizer.defaults)
        # Optimizer.__init__ would make param groups of its own; these are the inner optimizer's.
        self.__setstate__({"inner": optimizer, "lander": lander, "defaults": defaults, "_positions": positions})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of the inner optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> "JointState":  # type: ignore[override]
        """That of the inner optimizer, and that of landing beside it."""
        return JointState(self.inner.state, self.lander.state)

    def __getattr__(self, name: str) -> Any:
        """What only the inner optimizer has."""
        if name.startswith("_") or "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies."""
        names = ("inner", "lander", "defaults", "_positions")
        return {name: self.__dict__[name] for name in names}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add unconstrained parameters to the inner optimizer."""
        self.inner.add_param_group(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Let the inner optimizer step, then take its displacement on the manifold."""
        self._follow()
        params = _params(self.lander)
        with torch.no_grad():
            before = [param.clone(memory_format=torch.preserve_format) for param in params]
        gradients = FiniteGradients(self.lander.param_groups)

        def finite_closure() -> float:
            assert closure is not None
            value = closure()
            gradients.hide_()
            return value

        try:
            gradients.hide_()
            loss: float | None = step_inner(self.inner, *(() if closure is None else (finite_closure,)))
        except BaseException:
            with torch.no_grad():
                for param, old in zip(params, before, strict=True):
                    param.copy_(old)
            raise
        finally:
            gradients.restore_()
        self._refuse_new_shapes(params, before)
        # torch.distributed.checkpoint creates state by a step at learning rates of zero, which must move nothing
        if not all(_is_zero(group.get("lr")) for group in self.inner.param_groups):
            self._land(params, before, gradients)
        return loss

    @torch.no_grad()
    def _land(self, params: list[Tensor], before: list[Tensor], gradients: FiniteGradients) -> None:
        grads = [param.grad for param in params]
        try:
            for index, (param, old) in enumerate(zip(params, before, strict=True)):
                displacement = gradients.mark(index, old - param)
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

    def _follow(self) -> None:
        """Constrain what has been put in place of constrained parameters in the param groups.

        Raises:
            RuntimeError: if that is not known, or came after their first step, whose state is then lost.
        """
        groups, params = self.inner.param_groups, _params(self.lander)
        if self._positions.unchanged(groups, params):
            return
        found = self._positions.find(groups, params)
        places = [
            (index, i) for index, group in enumerate(self.lander.param_groups) for i in range(len(group["params"]))
        ]
        swaps = [
            (index, i, self._checked_swap(index, i, tensor))
            for (index, i), old, tensor in zip(places, params, found, strict=True)
            if tensor is not old
        ]
        if swaps:
            self._adopt(swaps)
        self._positions = Positions(groups, _params(self.lander))

    def _adopt(self, swaps: list[tuple[int, int, Tensor]]) -> None:
        """Put tensors in place of the lander's; a POGO of these alone checks them and creates their state."""
        groups = self.lander.param_groups
        new: dict[int, list[tuple[str, Tensor]]] = {}
        for index, i, tensor in swaps:
            name = names_of(groups[index])[i] + (
                "" if "param_names" in groups[index] else f" of constrained group {index}"
            )
            new.setdefault(index, []).append((name, tensor))
        try:
            fresh = POGO([{**groups[index], "params": named} for index, named in new.items()], 1.0, SGD())
        except ValueError as error:
            inner = type(self.inner).__name__
            raise RuntimeError(f"a parameter was replaced in the param groups of {inner}: {error}") from error
        for index, i, tensor in swaps:
            old = groups[index]["params"][i]
            self.lander.state.pop(old, None)
            self.lander._repaired.pop(old, None)
            groups[index]["params"][i] = tensor
        self.lander.state.update(fresh.state)
        self.lander._repaired.update(fresh._repaired)
        self.lander._forget_plans()

    def _checked_swap(self, index: int, i: int, new: Tensor | None) -> Tensor:
        group, inner = self.lander.param_groups[index], type(self.inner).__name__
        old, name = group["params"][i], parameter_name(group, i, f"constrained group {index}")
        if new is None:
            raise RuntimeError(f"{name} is no longer in the param groups of {inner}: call orthoptim.wrap again")
        if new.shape != old.shape:
            raise RuntimeError(
                f"{name} was replaced in the param groups of {inner} by a tensor of shape {tuple(new.shape)}: "
                "call orthoptim.wrap again"
            )
        state = self.lander.state.get(old, {})
        if int(state.get("step", 0)) > 0:
            raise RuntimeError(
                f"{name} was replaced in the param groups of {inner} after it was stepped, and its state belongs to "
                "the tensor it was: replace parameters before the first step, or build and wrap a new optimizer"
            )
        return new

    def state_dict(self) -> StateDict:
        """That of the inner optimizer, with the state of landing beside its own.

        It has names such as ``landing_num_updates``. So tools that rename parameters keep it, as
        ``torch.distributed.checkpoint`` does.
        """
        self._follow()
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        self.lander.create_state()  # a checkpoint is read into the entries there are
        state_dict = self.inner.state_dict()
        state = dict(state_dict["state"])
        for key, param in self._keys(state_dict):
            landing = apart(self.lander.state.get(param, {}))
            if landing:
                state[key] = {**state.get(key, {}), **{_PREFIX + name: value for name, value in landing.items()}}
        state_dict = {**state_dict, "state": state}
        for after in self._optimizer_state_dict_post_hooks.values():
            state_dict = after(self, state_dict) or state_dict
        return state_dict

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what :meth:`state_dict` returned."""
        self._follow()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        inner_state, landing = dict(state_dict.get("state", {})), self.lander.state_dict()
        keys = {param: key for key, param in zip_ids(landing, self.lander.param_groups)}
        landing["state"] = {}
        for key, param in self._keys(state_dict):
            entries = inner_state.get(key, {})
            own = {name: value for name, value in entries.items() if not name.startswith(_PREFIX)}
            if param in keys:
                landed = {name.removeprefix(_PREFIX): value for name, value in entries.items() if name not in own}
                if not landed:
                    raise ValueError(
                        "loaded state dict has no 'landing_num_updates' of a constrained parameter: it was not saved "
                        "by a wrapped optimizer"
                    )
                landing["state"][keys[param]] = landed
            inner_state.pop(key, None)
            if own:
                inner_state[key] = own
        self.lander.check_state_dict(landing)  # before anything changes
        self.inner.load_state_dict({**state_dict, "state": inner_state})
        self.lander.load_state_dict(landing)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _keys(self, state_dict: StateDict) -> list[tuple[Any, Tensor]]:
        """The parameters with the keys of their state in a state dict of the inner optimizer."""
        return zip_ids(state_dict, self.inner.param_groups)

    def plan(self, *, per_parameter: bool = False) -> Plan:
        """See :meth:`Orthoptimizer.plan`."""
        self._follow()
        return self.lander.plan(per_parameter=per_parameter)

    def drift(self, *, per_parameter: bool = False) -> DriftTable:
        """See :meth:`Orthoptimizer.drift`."""
        self._follow()
        return self.lander.drift(per_parameter=per_parameter)


def zip_ids(state_dict: StateDict, groups: list[dict[str, Any]]) -> list[tuple[Any, Tensor]]:
    """The parameters of groups with their ids in a state dict, which has them in the same order."""
    saved = state_dict.get("param_groups", [])
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in groups]:
        return []  # which the inner optimizer refuses
    pairs = zip(saved, groups, strict=True)
    return [pair for ours, group in pairs for pair in zip(ours["params"], group["params"], strict=True)]


def _is_zero(lr: Any) -> bool:
    """Whether a learning rate is known to be zero without waiting for a device."""
    if isinstance(lr, Tensor):
        return lr.device.type == "cpu" and lr.numel() == 1 and lr.item() == 0
    return bool(lr == 0)


def _params(lander: POGO) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in lander.param_groups))


def _listed(constrained: Params) -> list[dict[str, Any]]:
    """Param groups with lists of parameters, which can be looked at before they are used."""
    if isinstance(constrained, Tensor | nn.Module):
        name = type(constrained).__name__
        raise TypeError(f"wrap takes patterns, or an iterable of parameters or param groups, but got a {name}")
    items: list[Any] = list(constrained)
    if not items:
        raise ValueError("wrap got an empty list of constrained parameters")
    groups = items if isinstance(items[0], dict) else [{"params": items}]
    listed = []
    for index, group in enumerate(groups):
        for option in ("base", "algorithm", "momentum", "dampening", "nesterov", "maximize"):
            if group.get(option) not in (None, False, 0, POGO.algorithm):
                raise ValueError(
                    f"constrained group {index}: {option}={group[option]!r} means nothing to wrap, as the wrapped "
                    "optimizer makes the step: leave it out"
                )
        params = group["params"]
        listed.append({**group, "params": [params] if isinstance(params, Tensor) else list(params)})
    return listed


def _refuse_strangers(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    owned = {id(param) for group in optimizer.param_groups for param in group["params"]}
    named = [
        item if isinstance(item, tuple) else (group["param_names"][i] if has_names(group) else "", item)
        for group in groups
        for i, item in enumerate(group["params"])
    ]
    strangers = [(name, param) for name, param in named if isinstance(param, Tensor) and id(param) not in owned]
    if strangers:
        name, param = strangers[0]
        shape = "×".join(map(str, param.shape))
        first = f"{name!r}, {shape}" if name else shape
        raise ValueError(
            f"the optimizer does not own {len(strangers)} of the {len(named)} constrained parameters (the first is "
            f"{first}): build it with them before wrapping"
        )
