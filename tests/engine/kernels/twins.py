"""Two optimizers on equal parameters: one is stepped by kernels, the other by torch's own operations."""

import torch
from triton.runtime.interpreter import InterpretedFunction

import orthoptim as oo
from tests import reference

_call = InterpretedFunction.__call__


def _call_without_patching(self, *args, **kwargs):
    """The interpreter patches triton.language in every call of a device function: nine tenths of its time.

    For functions of ours the launch has done so already.
    """
    ours = self.fn.__module__.startswith("orthoptim.")
    return self.rewrite()(*args, **kwargs) if ours else _call(self, *args, **kwargs)


InterpretedFunction.__call__ = _call_without_patching

COUNTERS = ("step", "num_updates", "clipped", "rescued")
HOSTILE = (float("nan"), float("inf"), 1e30, 1e-30, 0.0)


class Eager(oo.POGO):
    """POGO in one form: a subclass has no kernels."""

    wanted = None

    @classmethod
    def form(cls, *shape_and_options):
        return cls.wanted or super().form(*shape_and_options)


class Twins:
    def __init__(self, tensors, form=None, *, lr=0.3, check_plan=True, **options):
        self.kernel = [torch.nn.Parameter(x) for x in tensors]
        self.eager = [torch.nn.Parameter(torch.empty_like(x).copy_(x)) for x in tensors]
        self.fast = oo.POGO(self.kernel, lr, **options)
        self.slow = type("Form", (Eager,), {"wanted": form})(self.eager, lr, **options)
        assert not check_plan or {bucket.form for bucket in self.fast.plan()} == {"triton"}

    def step(self, grads):
        for params, optimizer in ((self.kernel, self.fast), (self.eager, self.slow)):
            for param, grad in zip(params, grads, strict=True):
                param.grad = None if grad is None else grad.clone()
            optimizer.step()

    def check(self, tolerance=2e-6):
        for a, b in zip(self.kernel, self.eager, strict=True):
            assert difference(a.detach(), b.detach()) <= tolerance
            first, second = self.fast.state[a], self.slow.state[b]
            assert first.keys() == second.keys()
            for name, value in first.items():
                if name in COUNTERS:
                    assert torch.equal(value, second[name]), name
                else:
                    assert difference(value, second[name]) <= tolerance, name


def difference(a, b):
    """Largest difference, relative to the largest entry; entries that are not finite must be the same."""
    a, b = a.double() if not a.is_complex() else a.cdouble(), b.double() if not b.is_complex() else b.cdouble()
    finite = torch.isfinite(b) if not b.is_complex() else torch.isfinite(b.real) & torch.isfinite(b.imag)
    assert torch.equal(torch.nan_to_num(a[~finite].real), torch.nan_to_num(b[~finite].real))
    if not finite.any():
        return 0.0
    return ((a[finite] - b[finite]).abs().max() / b[finite].abs().max().clamp_min(1e-37)).item()


def orthonormal(*shape, dtype=torch.float32, view="matrix", seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return oo.orthogonalize_(torch.empty(shape, dtype=dtype), init="random", view=view, generator=generator)


def gradients(tensors, step, scale=1.0):
    """Random ones, the same for the same step."""
    generator = torch.Generator().manual_seed(step)
    return [scale * torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in tensors]


def with_hostile(grads, step):
    """Every matrix but the first of a batch is hostile in some step."""
    for grad in grads:
        for k in range(1, len(grad)):
            value = HOSTILE[(k + step) % 7] if (k + step) % 7 < len(HOSTILE) else None
            if value is None:
                continue
            if value == value and 0 < abs(value) < float("inf"):
                grad[k] *= value
            else:
                grad[k].reshape(-1)[0] = value
                grad[k, ..., 0] = value
    return grads


def check_against_reference(tensors, base, landing, lr=0.3, steps=3, scale=1.0, tolerance=2e-6, sigma=1.0):
    """Against the formulas in double precision, one matrix at a time; parameters hold sigma times the matrices."""
    params = [torch.nn.Parameter(sigma * x) for x in tensors]
    optimizer = oo.POGO(params, lr, base=base, landing=landing, scale=sigma)
    assert {bucket.form for bucket in optimizer.plan()} == {"triton"}
    history = [gradients(tensors, step, scale) for step in range(steps)]
    for grads in history:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
    for i, (x, param) in enumerate(zip(tensors, params, strict=True)):
        own = getattr(reference, type(base).__name__)
        wide = x.shape[-2] <= x.shape[-1]
        start, result = (reference.double(a.detach() if wide else a.detach().mT) for a in (x, param))
        flat = [
            sigma * reference.double(grads[i] if wide else grads[i].mT).reshape(-1, *start.shape[-2:])
            for grads in history
        ]
        for k, first in enumerate(start.reshape(-1, *start.shape[-2:])):
            points = reference.pogo_run(first, [g[k] for g in flat], lr, own(**base.hyperparameters), landing)
            error = abs(result.reshape(-1, *start.shape[-2:])[k] / sigma - points[-1]).max()
            assert error <= tolerance * abs(points[-1]).max()
