"""Starts the processes of a run, and starts them again when one is lost: torchrun's agent, in this process."""

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from orthoptim.experiments.parallel import worker
from orthoptim.experiments.parallel.ending import Ending, Exchange, signal_name
from orthoptim.experiments.results import ResultsError, Run, load
from orthoptim.experiments.runner import Interrupted, Job

RESTARTS = 10
"""How often lost processes are replaced before the run is given up."""


class WorkersLostError(ResultsError):
    """Processes were lost again and again."""


def run(job: Job) -> Run:
    """Run a job in ``config["nproc"]`` processes; the first of them shows how it goes on.

    If a process is killed, all are started again and go on from the last checkpoint.

    Raises:
        ResultsError: if results cannot be read or written, or too many processes were lost.
        ValueError: if the experiment lacks what it needs.
        Interrupted: by SIGINT or SIGTERM, after the step under way.
    """
    job.experiment.prepare(job.config)  # or every process would say what is missing
    with tempfile.TemporaryDirectory(prefix="orthoptim-") as folder:
        ending = _launch(job, Path(folder))
    if ending.signum:
        raise Interrupted(ending.signum)
    if ending.refused:
        raise ResultsError(ending.refused)
    complete = load(job.path)
    complete.notice = ending.notice
    return complete


def _launch(job: Job, folder: Path) -> Ending:
    exchange = Exchange(folder)
    agent = elastic_launch(
        LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=job.config["nproc"],
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=RESTARTS,
            logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        ),
        sys.executable,
    )
    signum = 0
    try:
        with _threads(job.config["threads"]), _handlers_kept(), _silence():
            agent(*worker.COMMAND, worker.pack(job), str(folder))
    except ChildFailedError as error:
        if exchange.ending() is None:
            raise WorkersLostError(_reason(error, exchange)) from None
    except SignalException as stopped:
        signum = stopped.sigval
    return exchange.ending() or Ending(signum=signum or signal.SIGTERM)


def _reason(error: ChildFailedError, exchange: Exchange) -> str:
    rank, failure = error.get_first_failure()
    code = failure.exitcode
    last = exchange.lost() or f"rank {rank} ended by {signal_name(-code) if code < 0 else f'exit code {code}'}"
    return f"processes were lost {RESTARTS + 1} times, last by {last}; results up to the last checkpoint are kept"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Within it, processes that are started have so many threads from their beginning."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """The agent takes signals over, and does not give them back."""
    caught = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(each) for each in caught]
    try:
        yield
    finally:
        for each, handler in zip(caught, before, strict=True):
            signal.signal(each, handler)


@contextmanager
def _silence() -> Iterator[None]:
    """The agent's log is for those who run clusters; what users have to know the ranks say."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
