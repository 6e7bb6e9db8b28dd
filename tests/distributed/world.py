"""Real gloo processes that are started once and then run one function after another."""

import os
import sys
import tempfile
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from tests.forks import CONTEXT

TIMEOUT = 240  # seconds: of a collective, and (a little longer) of a function


class WorkerError(Exception):
    """What went wrong in the workers, by rank."""


class World:
    """``size`` processes with a process group over all of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.alive = True
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = CONTEXT.Pipe()
            store = str(Path(self._folder.name) / "store")
            process = CONTEXT.Process(target=_work, args=(rank, size, store, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function, *args):
        """What ``function(rank, *args)`` returns on each rank; it must be importable."""
        answers = self.attempt(function, *args)
        wrong = {rank: text for rank, (ok, text) in enumerate(answers) if not ok}
        if wrong:
            first = next(iter(wrong))
            raise WorkerError(f"ranks {sorted(wrong)} failed; rank {first}:\n{wrong[first][1]}")
        return [answer for _, answer in answers]

    def attempt(self, function, *args):
        """For each rank (True, what it returned) or (False, (type and message of what it raised, traceback))."""
        for pipe in self._pipes:
            pipe.send((function, args))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(TIMEOUT + 30):
                self.close()
                raise WorkerError(f"rank {rank} does not answer")
            answers.append(pipe.recv())
        return answers

    def close(self) -> None:
        """Let the processes end, which is when coverage saves what it saw, and kill those that hang."""
        self.alive = False
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.kill()
            process.join()
        self._folder.cleanup()


def _work(rank: int, size: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT),
    )
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            break
        try:
            torch.manual_seed(0)
            pipe.send((True, function(rank, *args)))
        except BaseException as error:
            pipe.send((False, (f"{type(error).__name__}: {error}", traceback.format_exc())))
    sys.stdout.flush()
    os._exit(0)  # gloo's own threads abort at interpreter exit, one time in twenty
