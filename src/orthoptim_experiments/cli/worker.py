"""One rank of a run: what the agent starts, and starts again if a rank is lost."""

import json
import os
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich.console import Console
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from orthoptim_experiments.cli.ending import Ending, Exchange
from orthoptim_experiments.cli.progress import display
from orthoptim_experiments.harness import ranks, runner
from orthoptim_experiments.harness.experiment import Outcome
from orthoptim_experiments.harness.records import ResultsError
from orthoptim_experiments.problems import EXPERIMENTS

COMMAND = (
    "-c",
    # Until the run listens to signals they end the process, without a word.
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "from orthoptim_experiments.cli.worker import main; main()",
)
"""Of Python, to start a rank; a job and a folder follow, see :func:`main`."""


def main() -> None:
    """Run the job of the first argument, see :func:`pack`, with the :class:`Exchange` of the second."""
    job, exchange = unpack(sys.argv[1]), Exchange(Path(sys.argv[2]))
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        if exchange.ending() is None:
            _join(job, attempt)
            _run(job, exchange, attempt)
    except Exception as error:
        if exchange.ending() is None:  # otherwise the first rank has ended the run, and this one felt it go
            exchange.lose(int(os.environ["RANK"]), error)
            _leave(1)
    _leave(0)


def pack(job: runner.Job) -> str:
    """The job as one word of a command."""
    plain = {"experiment": job.experiment.name, "out": str(job.out)}
    names = ("config", "methods", "seeds", "timeout", "retry", "checkpoint_every")
    return json.dumps(plain | {name: getattr(job, name) for name in names})


def unpack(text: str) -> runner.Job:
    """The inverse of :func:`pack`."""
    plain = json.loads(text)
    return runner.Job(EXPERIMENTS[plain.pop("experiment")], out=Path(plain.pop("out")), **plain)


def _join(job: runner.Job, attempt: int) -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(job.config["device"])
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # The agent keeps the store, so that it outlives all ranks; each attempt has its own part of it.
    mine = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size, is_master=mine)
    ranks.join(PrefixStore(f"attempt {attempt}", store), rank, world_size, device)


def _run(job: runner.Job, exchange: Exchange, attempt: int) -> None:
    if attempt and ranks.is_first():
        print("orthoptim: a process was lost; all begin again from the last checkpoint", file=sys.stderr, flush=True)
        exchange.forget()
    try:
        with _watcher(job) as watcher:
            run = runner.run(job, watcher)
        ending = Ending(notice=run.notice)
    except runner.Interrupted as stopped:
        ending = Ending(signum=stopped.signum)
    except (ResultsError, ValueError) as error:
        ending = Ending(refused=str(error))
    if ranks.is_first():
        exchange.end(ending)
        ranks.end_all()


class _Silent:
    """Watches for the ranks that show nothing."""

    def begin(self, method: str, seed: int, step: int, budget: int) -> None:
        """See :meth:`runner.Watcher.begin`."""

    def progress(self, step: int, values: Any) -> None:
        """See :meth:`runner.Watcher.progress`."""

    def end(self, method: str, seed: int, outcome: Outcome, step: int, seconds: float, known: bool) -> None:
        """See :meth:`runner.Watcher.end`."""


def _watcher(job: runner.Job) -> AbstractContextManager[runner.Watcher]:
    return display(Console(), job.methods, job.seeds) if ranks.is_first() else nullcontext(_Silent())


def _end_with(agent: int) -> None:
    """No agent, no run: ranks whose agent was killed would go on unseen, and keep the results locked."""
    while os.getppid() == agent:
        time.sleep(0.5)
    os._exit(1)


def _leave(code: int) -> NoReturn:
    """End at once: one process in twenty would abort in gloo's threads on the way out of the interpreter."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
