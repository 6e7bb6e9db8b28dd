"""What hypothesis draws: shapes, dtypes, seeds; and matrices made from them."""

import torch
from hypothesis import strategies as st

REAL = (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
DOUBLE = (torch.float64, torch.complex128)
DTYPES = REAL + COMPLEX

seeds = st.integers(0, 2**31 - 1)
dtypes = st.sampled_from(DTYPES)
doubles = st.sampled_from(DOUBLE)


@st.composite
def shapes(draw, min_rank=0, max_rank=3, max_n=12):
    """(..., p, n) with p ≤ n and a batch of any rank."""
    batch = draw(st.lists(st.integers(1, 3), min_size=min_rank, max_size=max_rank))
    n = draw(st.integers(1, max_n))
    p = draw(st.integers(1, n))
    return (*batch, p, n)


def log_uniform(low, high):
    """Powers of ten between two exponents."""
    return st.floats(low, high, allow_nan=False).map(lambda exponent: 10.0**exponent)


def eps(dtype):
    """Twice the unit roundoff."""
    return torch.finfo(dtype).eps


def gaussian(shape, dtype, seed):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def orthonormal(shape, dtype, seed):
    """X with orthonormal rows, up to the rounding of its dtype."""
    double = torch.complex128 if dtype.is_complex else torch.float64
    q, _ = torch.linalg.qr(gaussian((*shape[:-2], shape[-1], shape[-2]), double, seed))
    return q.mH.resolve_conj().to(dtype).contiguous()


def of_norm(g, norm):
    """G rescaled to ‖G‖_F = norm (a number, or one per matrix); a zero matrix stays zero."""
    size = torch.linalg.vector_norm(g, dim=(-2, -1), keepdim=True)
    unit = g / torch.where(size == 0, 1, size)
    return unit * torch.as_tensor(norm, dtype=size.dtype).expand(g.shape[:-2])[..., None, None]


KINDS = ("generic", "tangent", "rotation", "normal")


def gradient(x, seed, norm=1.0, kind="generic"):
    """A gradient at X of the given Frobenius norm.

    ``generic`` is Gaussian; ``tangent`` is X times a skew-Hermitian matrix; ``rotation`` makes ‖R‖₂ as large as it can
    be, ‖G‖_F (complex) or ‖G‖_F/√2 (real); ``normal`` is a Hermitian matrix times X, whose relative gradient is zero.
    """
    *batch, p, n = x.shape
    if kind == "generic":
        g = gaussian(x.shape, x.dtype, seed)
    elif kind == "tangent":
        a = gaussian((*batch, n, n), x.dtype, seed)
        g = x @ (a - a.mH)
    elif kind == "rotation":
        k = torch.zeros(p, p, dtype=x.dtype)
        if x.is_complex():
            k[0, 0] = 1j
        elif p > 1:
            k[0, 1], k[1, 0] = 1, -1
        g = k @ x
    else:
        a = gaussian((*batch, p, p), x.dtype, seed)
        g = (a + a.mH) @ x
    return of_norm(g, norm)


kinds = st.sampled_from(KINDS)


def rescued(step):
    """Which matrices a step has rescued, also where it says by ``None`` that there are none."""
    return torch.zeros(step.x.shape[:-2], dtype=torch.bool) if step.rescued is None else step.rescued
