"""Functions run by several real processes at once, as ranks of one group."""

import os
import pickle
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore

from orthoptim_experiments.harness import ranks
from tests.forks import CONTEXT

TIMEOUT = 300.0  # processes may be paused for a while


def together(world_size, function, *arguments, **options):
    """What the function, known by its name in a module, returns on each rank; the traceback of the first that fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            CONTEXT.Process(target=_rank, args=(folder, rank, world_size, function, arguments, options))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + TIMEOUT
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
        outcomes = [_read(folder / f"{rank}.pickle") for rank in range(world_size)]
        for trace, _ in outcomes:
            assert not trace, trace
        return [value for _, value in outcomes]


def _read(path):
    return pickle.loads(path.read_bytes()) if path.exists() else (f"{path.name}: died, or hung", None)


def _rank(folder, rank, world_size, function, arguments, options):
    torch.set_num_threads(1)
    try:
        store = FileStore(str(folder / "store"), world_size)
        ranks.join(torch.device("cpu"), store=store, rank=rank, world_size=world_size)
        dist.barrier()  # who ends at once would break the connections that another is still making
        outcome = ("", function(*arguments, **options))
    except BaseException:
        outcome = (f"rank {rank}: {traceback.format_exc()}", None)
    partial = folder / f"{rank}.partial"
    partial.write_bytes(pickle.dumps(outcome))
    partial.rename(folder / f"{rank}.pickle")
    sys.stdout.flush()
    os._exit(0)  # gloo's threads abort now and then on the way out of the interpreter
