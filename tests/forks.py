"""Processes forked from one that has imported what they need: torch takes a second, its compiler and pyplot two."""

import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch._dynamo",  # which every optimizer imports when it is made
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "pytest",
        "orthoptim_experiments.cli.commands",
        "orthoptim_experiments.cli.job",
        "orthoptim_experiments.report",
        "tests.distributed.cases",
    ]
)


class Command:
    """``orthoptim ARGUMENTS`` in a process of its own, with the part of Popen's interface that tests of signals use."""

    def __init__(self, *arguments):
        self._folder = tempfile.TemporaryDirectory()
        self._streams = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        self._process = CONTEXT.Process(target=_run, args=([*map(str, arguments)], self._streams))
        self._process.start()

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def kill(self):
        self._process.kill()

    def wait(self):
        """Its exit status, and what it wrote to stdout and to stderr."""
        self._process.join()
        return self._process.exitcode, *(file.read_bytes() if file.exists() else b"" for file in self._streams)


def _run(arguments, streams):
    from orthoptim_experiments.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(streams, 1):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), number)
    sys.argv = ["orthoptim", *arguments]
    main()
