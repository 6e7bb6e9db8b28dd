"""What a stranger has to read to follow one step: the files and the depth of the calls that it crosses.

python -m tests.footprint
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import orthoptim as oo

SOURCE = str(Path(oo.__file__).parent)


def footprint(step: Callable[[], object]) -> tuple[set[str], int]:
    """The files of the library that a call crosses, and how deep it goes in them."""
    files: set[str] = set()
    depth = deepest = 0

    def profile(frame, event, argument):
        nonlocal depth, deepest
        if not frame.f_code.co_filename.startswith(SOURCE):
            return
        if event == "call":
            files.add(frame.f_code.co_filename.removeprefix(SOURCE).lstrip("/"))
            depth += 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return files, deepest


def plain(*shapes: tuple[int, ...], view: str = "matrix") -> oo.POGO:
    """An optimizer that has taken two steps."""
    params = [nn.Parameter(oo.orthogonalize_(torch.empty(shape), view=view, init="random")) for shape in shapes]
    opt = oo.POGO(params, lr=0.1, view=view)
    return stepped(opt, params)


def stepped(opt: oo.POGO, params: list[nn.Parameter]) -> oo.POGO:
    for param in params:
        param.grad = torch.ones_like(param)
    opt.step()
    opt.step()
    return opt


@contextmanager
def world(size: int) -> Iterator[None]:
    """A process group that answers at once: the other ranks are not there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def sharded(shape: tuple[int, int], dim: int) -> oo.POGO:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (4,))
    local = list(shape)
    local[dim] //= 4
    place = [Shard(dim)]
    params = [
        nn.Parameter(DTensor.from_local(torch.empty(local, device="meta"), mesh, place, run_check=False))
        for _ in range(2)
    ]
    return stepped(oo.POGO(params, lr=0.1), params)


def main() -> None:
    warnings.simplefilter("ignore")
    cases: dict[str, Callable[[], oo.POGO]] = {
        "one 1024×1024": lambda: plain((1024, 1024)),
        "a convolution, kernels": lambda: plain((64, 32, 3, 3), view="kernels"),
        "1000 of 64×64": lambda: plain(*[(64, 64)] * 1000),
        "DTensor, whole": lambda: sharded((64, 64), 0),
        "DTensor, two-phase": lambda: sharded((16, 1024), 1),
    }
    print("| step of | files | frames deep |\n|---|---|---|")
    for name, make in cases.items():
        with world(4) if "DTensor" in name else warnings.catch_warnings():
            opt = make()
            files, depth = footprint(opt.step)
        print(f"| {name} | {len(files)} | {depth} |")
        if "-v" in sys.argv:
            print("   ", ", ".join(sorted(files)))


if __name__ == "__main__":
    main()
