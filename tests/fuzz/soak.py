"""Take very many steps, with restarts from a checkpoint: the distance stays within its bound and memory is flat.

python -m tests.fuzz.soak --steps 1000000
"""

import argparse
import ctypes
import gc
import io
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

import orthoptim as oo
from tests.fuzz.expectations import TAKEN
from tests.fuzz.promises import distances, matrices_of, promise_of, rounding
from tests.fuzz.record import write_record

GRADIENTS = 61  # that are taken in turn
SPIKE_EVERY = 101  # steps, a learning rate a million times as large
POISON_EVERY = 997  # a gradient that is not finite
CHECK_EVERY = 4 * SPIKE_EVERY  # just after a spike, and one step later
MEGABYTES = 4.0  # by which memory may grow after the first quarter of the steps


class Case(NamedTuple):
    """What is stepped."""

    name: str
    method: type[oo.Orthoptimizer]
    shape: tuple[int, ...]
    dtype: torch.dtype
    options: dict[str, Any]


CASES = (
    Case("tiny", oo.POGO, (4, 2, 3), torch.float32, {"base": oo.VAdam(), "lr": 0.5}),
    Case("square, strict", oo.POGO, (8, 8), torch.float32, {"base": oo.SGD(), "lr": 0.1, "landing": "strict"}),
    Case("complex", oo.POGO, (4, 16), torch.complex64, {"base": oo.SGD(momentum=0.9), "lr": 0.05}),
    Case("wide, strict", oo.POGO, (3, 48), torch.float32, {"base": oo.VAdam(), "lr": 0.5, "landing": "strict"}),
    Case("bfloat16", oo.POGO, (2, 8, 8), torch.bfloat16, {"base": oo.VAdam(), "lr": 0.1, "landing": "strict"}),
    Case("double, strict", oo.POGO, (4, 6), torch.float64, {"base": oo.Adam(), "lr": 0.1, "landing": "strict"}),
    Case("RGD", oo.RGD, (4, 8), torch.float32, {"base": oo.SGD(), "lr": 0.1}),
    Case("Landing", oo.Landing, (4, 8), torch.float32, {"base": oo.SGD(momentum=0.9), "lr": 0.1}),
)


class Soaked(NamedTuple):
    """What came out of one case."""

    case: str
    dtype: str
    steps: int
    restarts: int
    checks: int
    worst: float
    limit: float
    grown: float  # megabytes
    defects: tuple[str, ...]


def soak(case: Case, steps: int, restart_every: int = 10_000) -> Soaked:
    """Step one case so many times."""
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.Parameter(
        oo.orthogonalize_(torch.empty(case.shape, dtype=case.dtype), init="random", generator=generator)
    )
    opt = case.method([x], **case.options)
    group = opt.param_groups[0]
    gradients = [torch.randn(case.shape, generator=generator, dtype=case.dtype) for _ in range(GRADIENTS)]
    poison = torch.full_like(gradients[0], math.nan)
    promise = promise_of(opt.algorithm, group)
    assert promise is not None
    p, n = matrices_of(x, group).shape[1:]
    limit = promise.distance + rounding(case.dtype, p, n) * (p**0.5 if promise.frobenius else 1)
    worst, checks, restarts, skipped, before = 0.0, 0, 0, 0, math.nan
    defects: list[str] = []
    for t in range(1, steps + 1):
        opt.param_groups[0]["lr"] = _rate(case.options["lr"], t)
        x.grad = poison if t % POISON_EVERY == 0 else gradients[t % GRADIENTS]
        skipped += t % POISON_EVERY == 0
        opt.step()
        if t % CHECK_EVERY in (0, 1):
            checks += 1
            value = opt.state[x].get("master", x)
            worst = max(worst, float(distances(matrices_of(value, group), promise.frobenius).max()))
        if t == 1:
            _restarted(case, x, opt)  # the first use of the code for files takes memory once
        if t % restart_every == 0:
            restarts += 1
            x, opt = _restarted(case, x, opt)
        if t == steps // 4:
            before = allocated_megabytes()
    if not worst <= limit:
        defects.append(f"distance {worst:.3g} where {limit:.3g} is promised")
    counted = int(opt.state[x]["step"]), opt.state[x][TAKEN].unique().tolist()
    if counted != (steps, [steps - skipped]):
        defects.append(f"counters {counted} after {steps} steps, of which {skipped} had no finite gradient")
    grown = allocated_megabytes() - before
    if grown > MEGABYTES:
        defects.append(f"memory grew by {grown:.1f} MB")
    dtype = str(case.dtype).removeprefix("torch.")
    return Soaked(case.name, dtype, steps, restarts, checks, worst, limit, round(grown, 2), tuple(defects))


def _rate(lr: float, t: int) -> float:
    """A schedule with a spike now and then."""
    return lr * (1e6 if t % SPIKE_EVERY == 0 else 0.5 * (1.01 + math.cos(t * 1e-3)))


def _restarted(case: Case, x: torch.nn.Parameter, opt: oo.Orthoptimizer) -> tuple[torch.nn.Parameter, oo.Orthoptimizer]:
    """Parameter and optimizer from a checkpoint of these."""
    file = io.BytesIO()
    torch.save({"x": x.detach(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh = torch.nn.Parameter(saved["x"])
    with warnings.catch_warnings():  # the matrices are where the last step left them
        warnings.filterwarnings("ignore", "parameter .* was not orthonormal")
        reopened = case.method([fresh], **case.options)
    reopened.load_state_dict(saved["opt"])
    return fresh, reopened


class _MallocInfo(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns; ``uordblks`` and ``hblkhd`` are the bytes that are handed out."""

    _NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple(zip(_NAMES.split(), [ctypes.c_size_t] * 10, strict=True))


def allocated_megabytes() -> float:
    """Memory that is handed out: to tensors by malloc, and to objects by Python, 64 bytes for each.

    Not resident memory: the kernel takes pages back when others need them, and a process gets them again later.
    """
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallocInfo
    info = mallinfo2()
    return (info.uordblks + info.hblkhd + 64 * sys.getallocatedblocks()) / 2**20


def main(arguments: list[str] | None = None) -> int:
    """Step all cases, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="of all cases together")
    parser.add_argument("--restart-every", type=int, default=10_000)
    parser.add_argument("--output", type=Path, help="a JSON file for the table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    began = time.monotonic()
    rows = []
    print("| case | dtype | steps | restarts | checks | worst distance | promised | memory grew by |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        row = soak(case, math.ceil(options.steps / len(CASES)), options.restart_every)
        rows.append(row)
        print(
            f"| {row.case} | {row.dtype} | {row.steps} | {row.restarts} | {row.checks} | {row.worst:.3g} | "
            f"{row.limit:.3g} | {row.grown:.1f} MB |",
            flush=True,
        )
    seconds = round(time.monotonic() - began, 1)
    defects = [f"{row.case}: {defect}" for row in rows for defect in row.defects]
    print(f"\n{sum(row.steps for row in rows)} steps, {len(defects)} defects, {seconds} s", *defects, sep="\n")
    steps = sum(row.steps for row in rows)
    command = f"python -m tests.fuzz.soak --steps {options.steps}"
    table = [row._asdict() for row in rows]
    write_record(options.output, command, steps=steps, defects=defects, seconds=seconds, rows=table)
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
