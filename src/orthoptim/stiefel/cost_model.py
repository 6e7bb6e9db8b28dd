"""The cost model: which form of the step serves a shape, and how many matrices are worked on at a time.

Products are counted in multiply–adds per matrix. What is measured, on CPU in float32:

- a product of symmetric result costs 0.6 of the full one by panels for a matrix of 1500×2000, 0.8 by two levels of
  blocks for eight of 256×576, but 1.4 for one of 300×300;
- a pass over memory that does not fit the cache costs ten times one that does, and temporaries above the allocator's
  mmap threshold (32 MB) cost page faults on top: buckets are therefore worked on in blocks;
- 3×3 products by ``bmm`` cost eight times those that run over the batch entry by entry.

On a GPU a step is a number of launches, each of which takes as long as a small product: blocks are as large as memory
allows, symmetric products are cut only where the parts still fill the device, and tiny matrices go through ``bmm``,
which takes a tenth of the launches of entry by entry.
"""

from orthoptim.stiefel.batches import SYMMETRIC_FROM, TINY, is_gpu

TINY_BLOCK = 1 << 16
"""How many of these are worked on at a time: torch shares a vector between threads from 32768 entries for each."""

BLOCK_BYTES = 15 << 17
"""How much of a bucket is worked on at a time on a CPU: with its temporaries it should fit the cache."""

BLOCK_CAP_MB = 512
"""The same on a GPU, by default: its temporaries take about five times as much memory."""


def choose(p: int, n: int, normalized: bool = False, device: str = "cpu") -> str:
    """The form of least cost that is accurate for the direction at hand.

    ``gram`` is only for a normalised one: in float32 it loses feasibility as u(η‖normal part of G‖)².

    Example:
        >>> choose(3, 3), choose(64, 64), choose(64, 576), choose(10, 10_000, normalized=True)
        ('tiny', 'direct-n', 'direct-p', 'gram')
    """
    if n <= TINY and not is_gpu(device):
        return "tiny"
    # on a GPU the many small products of gram pay only where passes over long rows are what a step costs
    normalized = normalized and (n >= 16 * p or not is_gpu(device))
    forms = ("direct-n", "direct-p", "gram") if normalized else ("direct-n", "direct-p")
    return sorted(forms, key=lambda form: multiply_adds(form, p, n, device))[
        0
    ]  # torch 2.9 does not trace min(..., key=...)


def multiply_adds(form: str, p: int, n: int, device: str = "cpu") -> float:
    """Multiply–adds of a step."""
    wide = p * p * n
    half = 0.8 if p >= SYMMETRIC_FROM and not is_gpu(device) else 1.0  # a symmetric product
    if form == "direct-n":
        return 2 * p * n * n + (1 + half) * wide
    if form == "direct-p":
        return (4 + 2 * half) * wide
    if form == "gram":
        return (3 + 2 * half) * wide + 7 * p**3
    raise ValueError(f"Invalid form: {form!r}")


def block_size(p: int, n: int, itemsize: int, device: str = "cpu", cap_mb: float = BLOCK_CAP_MB) -> int:
    """The number of matrices to work on at a time; on a CPU, no more than fit the cache.

    Example:
        >>> block_size(64, 64, 4), block_size(64, 64, 4, cap_mb=1), block_size(64, 64, 4, "cuda")
        (120, 64, 32768)
    """
    most = max(1, int(cap_mb * 2**20) // (p * n * itemsize))
    if is_gpu(device):
        return most
    return min(most, TINY_BLOCK if n <= TINY else max(1, BLOCK_BYTES // (p * n * itemsize)))
