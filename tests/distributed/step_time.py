"""Time a sharded step of several source trees by turns: four gloo ranks, a transformer of 12 layers with d = 128.

python -m tests.distributed.step_time TREE [TREE ...]
"""

import multiprocessing as mp
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

WORLD, ROUNDS, STEPS = 4, 40, 5


def work(tree: str, rank: int, store: str, pipe: Connection) -> None:
    """One rank: step when told to, and send seconds of the clock and of the processor for each step."""
    sys.path.insert(0, f"{tree}/src")
    import orthoptim as oo

    assert oo.__file__.startswith(tree)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    generator = torch.Generator().manual_seed(0)

    def place(tensor: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)

    params = []
    for shape in ([(128, 128)] * 4 + [(512, 128), (128, 512)]) * 12:
        x = torch.nn.init.orthogonal_(torch.empty(shape), generator=generator)
        params.append(torch.nn.Parameter(place(x)))
        params[-1].grad = place(torch.randn(shape, generator=generator))
    opt = oo.POGO(params, lr=0.1)
    for _ in range(3):
        opt.step()
    pipe.send(None)
    while pipe.recv():
        dist.barrier()
        clock, processor = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            opt.step()
        pipe.send(((time.perf_counter() - clock) / STEPS, (time.process_time() - processor) / STEPS))
    os._exit(0)  # gloo's own threads abort at interpreter exit, one time in twenty


class Ranks:
    """The ranks that run one tree: processes forked from this one, which has imported torch and nothing else."""

    def __init__(self, tree: str) -> None:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            store = file.name
        context = mp.get_context("fork")
        self.pipes = []
        for rank in range(WORLD):
            ours, theirs = context.Pipe()
            context.Process(target=work, args=(tree, rank, store, theirs), daemon=True).start()
            self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.recv()

    def measure(self) -> tuple[float, float]:
        """Milliseconds of a step: of the slowest rank by the clock, and of all processors together."""
        for pipe in self.pipes:
            pipe.send(True)
        answers = [pipe.recv() for pipe in self.pipes]
        return 1e3 * max(clock for clock, _ in answers), 1e3 * sum(processor for _, processor in answers)


def main(trees: list[str]) -> None:
    """Measure the trees by turns."""
    worlds = [Ranks(os.path.abspath(tree)) for tree in trees]
    times = [[ranks.measure() for ranks in worlds] for _ in range(ROUNDS)]
    first = statistics.median(measured[0][0] for measured in times)
    for place, tree in enumerate(trees):
        clocks, processors = zip(*(measured[place] for measured in times), strict=True)
        clock, processor = statistics.median(clocks), statistics.median(processors)
        print(
            f"{tree}: {clock:.1f} ms (least {min(clocks):.1f}), {processor:.1f} ms of processors, {clock / first:.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
