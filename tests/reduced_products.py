"""Products of TF32 and bfloat16, emulated on any machine."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {
    torch.ops.aten.mm.default: (0, 1),
    torch.ops.aten.bmm.default: (0, 1),
    torch.ops.aten.bmm.out: (0, 1),
    torch.ops.aten.addmm.default: (1, 2),
    torch.ops.aten.baddbmm.default: (1, 2),
    torch.ops.aten.baddbmm.out: (1, 2),
}
DROPPED = {"tf32": 13, "bfloat16": 16}  # of the 23 bits of float32


class Reduced(TorchDispatchMode):
    """Rounds the factors of products while the switches allow it, and adds up in float32, as the hardware does."""

    def __init__(self, kind):
        super().__init__()
        self.dropped, self.rounded = DROPPED[kind], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        factors = PRODUCTS.get(func, ())
        if factors and torch.get_float32_matmul_precision() != "highest":
            self.rounded += 1
            args = [self.round(a) if i in factors else a for i, a in enumerate(args)]
        return func(*args, **(kwargs or {}))

    def round(self, a):
        if a.is_complex():
            return (
                torch.view_as_complex(self.round(torch.view_as_real(a.resolve_conj())))
                if a.dtype == torch.complex64
                else a
            )
        if a.dtype != torch.float32:
            return a
        bits, half = a.contiguous().view(torch.int32), 1 << (self.dropped - 1)
        kept = (bits + (half - 1) + ((bits >> self.dropped) & 1)) & -(1 << self.dropped)
        return kept.view(torch.float32)
