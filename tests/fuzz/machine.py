"""The machine: it applies operations to an optimizer and checks after each step what the optimizer promises."""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from orthoptim.views import View
from tests.fuzz import operations as ops
from tests.fuzz import start
from tests.fuzz.expectations import Expectations, Violation
from tests.fuzz.gradients import LAYOUTS, gradients_of
from tests.fuzz.promises import Promise, matrices_of, wide
from tests.fuzz.run import Run, Snapshot, difference

_MODERATE_LR = 0.05


class Machine(Expectations):
    """Applies operations to an optimizer and to its copies, and checks after each step what is expected of them.

    Args:
        begin: what to build.
    """

    def __init__(self, begin: start.Start) -> None:
        generator = torch.Generator().manual_seed(begin.seed)
        groups = list(begin.groups)
        params = [start.new_params(group, generator) for group in groups]
        super().__init__(Run(begin.method, groups, params))
        self.steps = 0

    def apply(self, operation: ops.Operation) -> None:
        """Apply an operation to the optimizer and its copies.

        Raises:
            Violation: if a promise is broken, or the library raises what it should not.
        """
        try:
            with warnings.catch_warnings():  # what is written to a matrix is meant
                warnings.filterwarnings("ignore", "parameter .* was far from orthonormal")
                self._apply(operation)
        except Violation:
            raise
        except Exception as error:
            line = (str(error).strip().splitlines() or [""])[0]
            rule = f"exception {type(error).__name__}"
            raise Violation(rule, f"{type(operation).__name__}: {line}") from error

    @functools.singledispatchmethod
    def _apply(self, operation: ops.Operation) -> None:
        raise NotImplementedError(operation)

    @_apply.register
    def _(self, operation: ops.Step) -> None:
        for run in self._runs():
            generator = torch.Generator().manual_seed(operation.seed)
            self._set_gradients(run, operation, generator)
        self._step()

    @_apply.register
    def _(self, operation: ops.StepAgain) -> None:
        self._step()

    @_apply.register
    def _(self, operation: ops.SetLr) -> None:
        for run in self._runs():
            group = run.opt.param_groups[operation.group % len(run.opt.param_groups)]
            group["lr"] = start.learning_rate(operation.lr, operation.tensor)
        self._follow_lr()

    @_apply.register
    def _(self, operation: ops.AddGroup) -> None:
        for run in self._runs():
            generator = torch.Generator().manual_seed(operation.seed)
            params = start.new_params(operation.group, generator)
            run.opt.add_param_group(start.group_dict(operation.group, params))
            run.groups.append(operation.group)
        self._begin_group(len(self.main.groups) - 1)

    @_apply.register
    def _(self, operation: ops.Duplicate) -> None:
        for run in self._runs():
            run.clear_gradients()
        twin = self.main.duplicate(operation.how)
        self._compare(twin, operation.how)
        if operation.swap:
            self.main, twin = twin, self.main
        self.twins = [twin, *self.twins[:1]]

    @_apply.register
    def _(self, operation: ops.Reload) -> None:
        before = self.main.snapshot()
        self.main.opt.load_state_dict(self.main.opt.state_dict())
        found = difference(before, self.main.snapshot())
        if found is not None:
            raise Violation("resume", f"loading the optimizer's own state changed it: {found}")

    @_apply.register
    def _(self, operation: ops.ToggleGrad) -> None:
        for run in self._runs():
            param = run.params[operation.param % len(run.params)]
            param.requires_grad_(not param.requires_grad)

    @_apply.register
    def _(self, operation: ops.ZeroGrad) -> None:
        for run in self._runs():
            run.opt.zero_grad(set_to_none=operation.set_to_none)

    @_apply.register
    def _(self, operation: ops.Overwrite) -> None:
        place = operation.param % len(self.records)
        record = self.records[place]
        if record is None:
            return
        index = operation.matrix % len(record.kept)
        if operation.how == "scale" and not record.kept[index]:
            return  # the product of two scalings may be anything
        for run in self._runs():
            _overwrite(run, place, index, operation)
        record.kept[index] = operation.how == "orthonormal"
        record.scaled[index] = operation.how == "scale"
        record.updates[index] = 0
        record.start[index] = self._distances(place, Promise(0.0))[index]

    @_apply.register
    def _(self, operation: ops.Recover) -> None:
        """Only where the method promises it; the copies are let go, as these are many steps."""
        wanted = [
            place
            for place, _, group, constrained in self.main.members()
            if constrained and self._record(place).scaled.any() and self._recovers(group)
        ]
        if not wanted:
            return
        self.twins = []
        for group in self.main.opt.param_groups:
            group["lr"] = _MODERATE_LR
        self._follow_lr()
        generator = torch.Generator().manual_seed(operation.seed)
        for _ in range(operation.steps):
            self.main.clear_gradients()
            for place, param, group, _ in self.main.members():
                if place in wanted:
                    x = wide(matrices_of(param, group))
                    noise = gradients_of(x, ("noise",), generator) / x[0].numel() ** 0.5
                    _give(param, group, noise, "plain")
            self._step()
            if not any(self._record(place).scaled.any() for place in wanted):
                return
        far = {place: self._distances(place, Promise(0.0)).tolist() for place in wanted}
        raise Violation("recovery", f"after {operation.steps} moderate steps scaled matrices are at distances {far}")

    # Steps

    def _step(self) -> None:
        self.steps += 1
        gradients = [param.grad for param in self.main.params]
        before = self.main.snapshot()
        if any(g is not None and g.layout is not torch.strided for g in gradients):
            self._refused(before)
            return
        finite = {
            place: torch.isfinite(matrices_of(param.grad, group)).flatten(1).all(1)
            for place, param, group, constrained in self.main.members()
            if constrained and param.grad is not None
        }
        clean = self._without_poison(finite)
        self._step_references()
        for run in self._runs():
            run.opt.step()
        for place, good in finite.items():
            self._check_steps(place, good, before)
        self._check_finite(before)
        self._check_drift()
        for place in finite:
            self._check_distance(place)
        if clean is not None:
            self._check_neighbours(clean, finite)
        self._check_references()
        for twin in self.twins:
            self._compare(twin, "step")

    def _refused(self, before: Snapshot) -> None:
        """A sparse gradient is refused while nothing has been changed."""
        for run in self._runs():
            try:
                run.opt.step()
            except RuntimeError as error:
                if "sparse" not in str(error):
                    raise
            else:
                raise Violation("sparse", "a sparse gradient was not refused")
            run.clear_gradients()
            found = difference(before, run.snapshot())
            if found is not None:
                raise Violation("sparse", f"a refused step changed something: {found}")

    def _without_poison(self, finite: dict[int, Tensor]) -> Run | None:
        """A copy that has stepped with other gradients where they are not finite; None where all are."""
        if all(good.all() for good in finite.values()) or any(g.get("compile") for g in self.main.opt.param_groups):
            return None
        clean = self.main.duplicate("deepcopy")
        generator = torch.Generator().manual_seed(0)
        for (place, param, _, _), (_, other, group, _) in zip(self.main.members(), clean.members(), strict=True):
            if place not in finite or finite[place].all():
                other.grad = param.grad
                continue
            g = matrices_of(param.grad, group)
            noise = torch.randn(g.shape, dtype=torch.float64, generator=generator).to(g.dtype)
            g = torch.where(finite[place][:, None, None], g, noise)
            other.grad = _laid_out_like(param.grad, _shaped(g, other, group))
        clean.opt.step()
        return clean

    def _set_gradients(self, run: Run, operation: ops.Step, generator: torch.Generator) -> None:
        for place, param, group, constrained in run.members():
            kinds, layout = operation.gradients[place % len(operation.gradients)]
            if kinds == ("none",):
                param.grad = None
            elif not constrained:
                noise = torch.randn(param.shape, dtype=torch.float64, generator=generator).to(param.dtype)
                param.grad = noise.to_sparse() if kinds == ("sparse",) else noise
            elif kinds == ("sparse",):
                param.grad = torch.ones_like(param).to_sparse()
            else:
                x = wide(matrices_of(param, group))
                _give(param, group, gradients_of(x, kinds, generator), layout)


def _shaped(matrices: Tensor, param: Tensor, group: dict[str, Any]) -> Tensor:
    """Matrices (B, p, n) in the shape of the parameter."""
    view, side = View.of(group["view"]), group["side"]
    ((batch, p, n, *_),) = view.parts(param.shape, side)
    return view.from_matrices([matrices.reshape(*batch, p, n)], param.shape, side)


def _give(param: Tensor, group: dict[str, Any], gradients: Tensor, layout: str) -> None:
    param.grad = LAYOUTS[layout](_shaped(gradients, param, group).to(param.dtype))


def _laid_out_like(tensor: Tensor, values: Tensor) -> Tensor:
    """The values in the strides of the tensor: products of another layout may be rounded otherwise."""
    if tensor.is_conj():
        return _laid_out_like(tensor.conj(), values.conj()).conj()
    room = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    first = tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())
    room[first].copy_(values[first])
    return room


@torch.no_grad()
def _overwrite(run: Run, place: int, index: int, operation: ops.Overwrite) -> None:
    param, group = next((param, group) for at, param, group, _ in run.members() if at == place)
    x = matrices_of(param, group).clone()
    matrix = x[index]
    if operation.how == "scale":
        matrix.mul_(operation.factor)
    elif operation.how == "zero":
        matrix.zero_()
    elif operation.how == "deficient":
        matrix[-1] = matrix[0] if len(matrix) > 1 else 0
    elif operation.how == "orthonormal":
        generator = torch.Generator().manual_seed(operation.seed)
        wide_dtype = torch.complex128 if x.is_complex() else torch.float64
        q, _ = torch.linalg.qr(torch.randn(matrix.mT.shape, dtype=wide_dtype, generator=generator))
        matrix.copy_(q.mH)
    else:
        raise ValueError(operation.how)
    param.copy_(_shaped(x, param, group))


def replay(begin: start.Start, operations: list[ops.Operation]) -> int:
    """Build an optimizer, apply the operations, and return the number of steps.

    Raises:
        Violation: if a promise is broken.
    """
    machine = Machine(begin)
    for operation in operations:
        machine.apply(operation)
    return machine.steps
