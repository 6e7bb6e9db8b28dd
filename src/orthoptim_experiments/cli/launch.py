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

from orthoptim_experiments.cli import worker
from orthoptim_experiments.cli.ending import Ending, Exchange, signal_name
from orthoptim_experiments.harness.records import ResultsError, Run, load
from orthoptim_experiments.harness.runner import Interrupted, Job

RESTARTS = 10
"""How often processes that were lost are replaced before a run is given up."""


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
        with _environment(**_variables(job)), _kept_handlers(), _silence():
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
    how = f"rank {rank} ended by {signal_name(-code)}" if code < 0 else exchange.lost()
    return f"processes were lost {RESTARTS + 1} times, the last time as {how}; give the same command again to go on"


def _variables(job: Job) -> dict[str, str]:
    """Threads from the beginning of each process; and no traces from C++, when connections to a killed one break."""
    return {"OMP_NUM_THREADS": str(job.config["threads"]), "TORCH_CPP_LOG_LEVEL": "ERROR"}


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Within it, processes that are started see these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _kept_handlers() -> Iterator[None]:
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
