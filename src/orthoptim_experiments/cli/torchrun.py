"""`--nproc`: the command starts itself again in several processes, under torchrun.

torchrun replaces processes that are killed, and starts them all again from the last checkpoint. A process that ends
with another status than 0 is a lost one to torchrun. So every process ends with 0 where the end is meant, and the first
leaves the exit status of the command in a file.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

from orthoptim import atomic
from orthoptim_experiments.cli import EXIT_STATUS, RESTARTS
from orthoptim_experiments.harness import ranks
from orthoptim_experiments.harness.records import ResultsError
from orthoptim_experiments.harness.runner import Interrupted


def is_worker() -> bool:
    """Whether this process was started by :func:`launch`."""
    return EXIT_STATUS in os.environ


def launch(arguments: Sequence[str], nproc: int, threads: int) -> int:
    """Run ``orthoptim ARGUMENTS`` in several processes, and return the exit status of the first.

    Raises:
        ResultsError: if processes were lost too often.
        Interrupted: by a signal that came before the first process could handle it.
    """
    from torch.distributed import run as torchrun  # half a second of imports
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with tempfile.TemporaryDirectory(prefix="orthoptim-") as folder:
        status = Path(folder, "exit_status")
        # threads from the start of each process; and no traces from C++ when connections to a killed process break
        os.environ |= {EXIT_STATUS: str(status), "OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        logging.disable(logging.CRITICAL)  # torchrun's log: the processes themselves say what users have to know
        options = ["--standalone", "--local-addr=localhost", f"--nproc-per-node={nproc}", f"--max-restarts={RESTARTS}"]
        options += [f"--log-dir={folder}", "--local-ranks-filter=0", "-m", "--", "orthoptim_experiments.cli"]
        signum = 0
        try:
            command = torchrun.parse_args([*options, *arguments, "--threads", str(threads)])  # type: ignore[no-untyped-call]
            torchrun.run(command)  # type: ignore[no-untyped-call]
        except ChildFailedError as error:
            if not status.exists():
                raise ResultsError(_reason(error.get_first_failure())) from None
        except SignalException as stopped:
            signum = stopped.sigval
        if not status.exists():
            raise Interrupted(signum or signal.SIGTERM)
        return int(status.read_text())


def run_as_worker(command: Callable[[], object]) -> NoReturn:
    """Run the command as one of the processes that :func:`launch` started."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # no run without torchrun, which may be killed
    file = Path(os.environ[EXIT_STATUS])
    if file.exists():  # a process was lost after the first had ended the run
        _leave(0)
    try:
        command()
    except SystemExit as end:
        if os.environ["RANK"] == "0":
            atomic.write(file, str(end.code or 0).encode())
    except Exception as error:
        if not file.exists():  # otherwise the first process has ended the run, and this one felt it go
            get_error_handler().record_exception(error)
            _leave(1)
    _leave(0)


def join(device: torch.device) -> None:
    """Join the other processes; say so where lost ones were replaced."""
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    store, rank, world_size = next(rendezvous("env://"))
    # torchrun keeps one store for all attempts: without a prefix the addresses of dead processes are found in it
    ranks.join(device, store=PrefixStore(f"attempt {attempt}", store), rank=rank, world_size=world_size)
    if attempt != "0" and ranks.is_first():
        print("orthoptim: a process was lost; all begin again from the last checkpoint", file=sys.stderr, flush=True)


def _reason(failure: tuple[int, object]) -> str:
    rank, details = failure
    code, message = getattr(details, "exitcode", 1), " ".join(str(getattr(details, "message", "")).split())
    how = f"rank {rank} ended by {signal.Signals(-code).name}" if code < 0 else f"{message} (rank {rank})"
    return f"processes were lost {RESTARTS + 1} times, the last time as {how}; give the same command again to go on"


def _leave(code: int) -> NoReturn:
    """End at once: gloo's threads abort now and then on the way out of the interpreter."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
