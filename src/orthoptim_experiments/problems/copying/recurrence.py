"""hₜ = modReLU(hₜ₋₁Wᵀ + dₜ) for all times, with a backward pass by hand: three times as fast as autograd's on a CPU.

autograd records five operations at each time, and adds up the gradient of W time by time. Here the gradient of W is one
product over all times; every contender has the same benefit, so that the share of what keeps W orthogonal is not hidden
by the time of Python.
"""

from typing import Any

import torch
from torch import Tensor

_EPS = 1e-5


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    """(|z| + b)₊ z/|z|: the length of every entry changes and its phase does not (Arjovsky, Shah & Bengio, 2016)."""
    if not z.is_complex():
        return torch.copysign((z.abs() + bias).relu(), z)
    length = z.abs()
    return z * ((length + bias).relu() / (length + _EPS))


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, driven: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        before, states = torch.empty_like(driven), torch.empty_like(driven)
        transposed, h = weight.mT.contiguous(), torch.zeros_like(driven[0])
        for drive, z, state in zip(driven.unbind(), before.unbind(), states.unbind(), strict=True):
            torch.addmm(drive, h, transposed, out=z)
            h = state.copy_(modrelu(z, bias))
        ctx.save_for_backward(weight, bias, before, states)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For y = z s(|z|): dz = s g + (z/|z|) s′ Re(z̄g), with s and s′ made for all times at once."""
        weight, bias, z, states = ctx.saved_tensors
        (outer,) = grads
        inner, g = torch.empty_like(z), torch.zeros_like(z[0])
        back = weight.conj().resolve_conj()
        if not z.is_complex():
            active = (states != 0).to(z.dtype)
            for out, mask, dz in zip(_reversed(outer), _reversed(active), _reversed(inner), strict=True):
                torch.mul(torch.addmm(out, g, back), mask, out=dz)
                g = dz
            d_bias = (z.sign() * inner).sum((0, 1))
        else:
            length = z.abs()
            active = ((length + bias) > 0).to(length.dtype)
            scale = active * (length + bias) / (length + _EPS)
            phase = z / length.clamp_min(torch.finfo(length.dtype).tiny)
            slope = active * (_EPS - bias) * length / (length + _EPS).square()
            along = torch.empty_like(length)
            rows = (outer, scale, phase, slope, along, inner)
            for out, s, u, c, a, dz in zip(*map(_reversed, rows), strict=True):
                total = torch.addmm(out, g, back)
                a.copy_((u.conj() * total).real)
                torch.add(s * total, u * (c * a), out=dz)
                g = dz
            d_bias = (active * along * length / (length + _EPS)).sum((0, 1))
        former = torch.cat((torch.zeros_like(states[:1]), states[:-1]))
        return inner, inner.flatten(0, 1).mT @ former.flatten(0, 1).conj(), d_bias


def _reversed(x: Tensor) -> tuple[Tensor, ...]:
    return x.unbind()[::-1]


def recur(driven: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """All states (time, batch, units), for d (time, batch, units), W (units, units) and b (units,)."""
    states: Tensor = _Recurrence.apply(driven, weight, bias)  # type: ignore[no-untyped-call]
    return states
