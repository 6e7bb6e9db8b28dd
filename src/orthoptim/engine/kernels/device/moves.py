"""Many tensors of one size to one, and back, in one launch: words of 32 bits through a table of addresses."""

import triton
import triton.language as tl


@triton.jit
def gather(table, out, size, BLOCK: tl.constexpr):
    """Copy ``size`` words from each address to its place in ``out``."""
    k = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(table + k).to(tl.pointer_type(tl.int32))
    tl.store(out + k * size + i, tl.load(source + i, mask=i < size), mask=i < size)


@triton.jit
def scatter(table, values, size, BLOCK: tl.constexpr):
    """Copy ``size`` words from their place in ``values`` to each address."""
    k = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(table + k).to(tl.pointer_type(tl.int32))
    tl.store(target + i, tl.load(values + k * size + i, mask=i < size), mask=i < size)
