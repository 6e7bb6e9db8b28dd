"""An optimizer under test with its parameters, copied and compared bit for bit."""

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.fuzz import start
from tests.fuzz.promises import distances, matrices_of, storage_rounding

Snapshot = list[tuple[Tensor, dict[str, Any]]]


class Run:
    """An optimizer and the specification of its groups."""

    def __init__(self, method: str, groups: list[start.Group], params: list[list[torch.nn.Parameter]]) -> None:
        self.method = method
        self.groups = list(groups)
        self.opt = start.build(method, groups, params)

    @property
    def params(self) -> list[Tensor]:
        """All parameters, in the order of the groups."""
        return [param for group in self.opt.param_groups for param in group["params"]]

    def members(self) -> Iterator[tuple[int, Tensor, dict[str, Any], bool]]:
        """For each parameter its place, itself, its param group, and whether it is constrained."""
        place = 0
        for group in self.opt.param_groups:
            for param in group["params"]:
                yield place, param, group, group["algorithm"] == self.method
                place += 1

    def value(self, param: Tensor) -> Tensor:
        """The parameter in the precision it is computed in."""
        master: Tensor = self.opt.state.get(param, {}).get("master", param)
        return master.detach()

    def snapshot(self) -> Snapshot:
        """Copies of all values: parameters and state."""
        state = self.opt.state
        return [
            (
                param.detach().clone(),
                {
                    name: value.clone() if isinstance(value, Tensor) else value
                    for name, value in state.get(param, {}).items()
                },
            )
            for param in self.params
        ]

    def clear_gradients(self) -> None:
        """Let no parameter have a gradient."""
        for param in self.params:
            param.grad = None

    def duplicate(self, how: str) -> "Run":
        """A copy that has to go on as this one does; see :class:`tests.fuzz.operations.Duplicate`."""
        if how in ("deepcopy", "pickle"):
            other = copy.copy(self)
            other.groups = list(self.groups)
            other.opt = copy.deepcopy(self.opt) if how == "deepcopy" else pickle.loads(pickle.dumps(self.opt))
            other.clear_gradients()
            return other
        file = io.BytesIO()
        torch.save({"params": [p.detach() for p in self.params], "opt": self.opt.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        if how == "save" and self._can_be_built():
            values = iter(saved["params"])
            params = [[torch.nn.Parameter(next(values)) for _ in group.shapes] for group in self.groups]
            other = Run(self.method, self.groups, params)
        else:
            generator = torch.Generator().manual_seed(0)
            other = Run(self.method, self.groups, [start.new_params(group, generator) for group in self.groups])
            with torch.no_grad():
                for param, value in zip(other.params, saved["params"], strict=True):
                    param.copy_(value)
        other.opt.load_state_dict(saved["opt"])
        return other

    def _can_be_built(self) -> bool:
        """Whether construction accepts the parameters as they are, or repairs what loading the state takes back."""
        for _, param, group, constrained in self.members():
            if not constrained:
                continue
            x = matrices_of(param, group)
            limit = 0.85 if self.opt.state.get(param) else storage_rounding(param.dtype, *x.shape[1:]) / 4
            if distances(x, frobenius=True).max() > limit:
                return False
        return True


def difference(one: Snapshot, two: Snapshot) -> str | None:
    """Where two snapshots differ, in any bit; None where they do not."""
    for place, ((value, state), (other, other_state)) in enumerate(zip(one, two, strict=True)):
        if not same(value, other):
            return f"parameter {place} differs"
        if state.keys() != other_state.keys():
            return f"the state of parameter {place} has {sorted(state)} and {sorted(other_state)}"
        for name in state:
            if not same(state[name], other_state[name]):
                return f"{name} of parameter {place} differs"
    return None


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal; NaN is equal to NaN."""
    if not isinstance(a, Tensor):
        return bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(torch.equal(a, b) or ((a == b) | ((a != a) & (b != b))).all())


def pieces(param: Tensor, state: dict[str, Any], group: dict[str, Any], value: Tensor) -> dict[str, Tensor]:
    """The value and the state of a constrained parameter, split by matrices along the first dim."""
    split = {"": matrices_of(value, group)}
    for name, held in state.items():
        if held.shape == param.shape:
            split[name] = matrices_of(held, group)
        elif held.numel() == len(split[""]) and name != "step":
            split[name] = held.reshape(-1)
    return split
