"""Watchers, jobs and comparisons that the tests of runs share."""

import json
import math
import os
import signal
import sys

import pytest
import torch
from typer.testing import CliRunner

from orthoptim_experiments.cli import commands
from orthoptim_experiments.harness import ranks, runner
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.methods import find
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.problems import EXPERIMENTS

TIMED = {"time", "processor_time", "optimizer_time", "memory", "optimizer_share", "images_per_second"}
COMPARED = ("loss", "train_loss", "accuracy", "bpd", "train_bpd", "test_bpd", "log_z", "lr", "epoch", "distance")
SMALL_CNN = {"train_images": 120, "test_images": 41, "batch_size": 30, "epochs": 2.0, "widths": [8, 8, 8]}

COMMAND = [sys.executable, "-m", "orthoptim_experiments.cli"]


def invoke(*arguments):
    """Run the command in this process."""
    return CliRunner().invoke(commands.app, [*map(str, arguments)])


def the_run(folder):
    """The only run in a folder."""
    (path,) = folder.glob("*.jsonl")
    return load(path)


def begin(experiment, method, seed=0, **options):
    """The problem of a seed at the tiny scale, with its optimizer; options are those of the configuration."""
    if not find(method).installed:
        pytest.skip(f"{find(method).peer} is not installed")
    config = configuration(experiment, "tiny", **options)
    torch.manual_seed(seed)  # as the runner does
    problem = experiment.problem(config, method, seed)
    problem.begin(find(method).build(problem.parameters(), experiment.methods(config)[method]))
    return problem


def whole_and_resumed(experiment, method, steps, **options):
    """A problem after so many steps, and one that took half of them and went on from their state."""
    whole, first, second = (begin(experiment, method, **options) for _ in range(3))
    for problem, count in ((whole, steps), (first, steps // 2)):
        for _ in range(count):
            problem.advance()
    second.load_state_dict(first.state_dict())
    for _ in range(steps - steps // 2):
        second.advance()
    return whole, second


class Quiet:
    """A watcher that remembers."""

    def __init__(self):
        self.ended = []
        self.begun = []

    def begin(self, method, seed, step, budget):
        self.begun.append((method, seed, step))

    def progress(self, step, values):
        pass

    def end(self, method, seed, outcome, step, seconds, known):
        self.ended.append((method, seed, outcome.status, known))


class Raising(Quiet):
    """Raises at a step, as a full disk or a kill would."""

    def __init__(self, at, error):
        super().__init__()
        self.at, self.error = at, error

    def progress(self, step, values):
        if step == self.at:
            raise self.error


class StoppingOneRank(Quiet):
    """Tells rank 1 to end after two steps, as torchrun does with all ranks."""

    def progress(self, step, values):
        if step == 2 and ranks.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def make_job(out, name, methods, nproc, dtype="float64", variant=None, sharded=False, **sizes):
    experiment = EXPERIMENTS[name]
    config = configuration(experiment, "tiny", variant=variant, nproc=nproc, dtype=dtype, sharded=sharded, sizes=sizes)
    return runner.Job(experiment, config, methods, (0,), out)


def run_job(*arguments, **options):
    """Run a job; return the path of its records, and what this rank was told about it."""
    watcher = Quiet()
    job = make_job(*arguments, **options)
    runner.run(job, watcher)
    return job.path, watcher.ended


def untimed(run):
    """All that two runs must agree in: times aside."""
    return {
        (t.method, t.seed): (t.status, t.options, {k: v for k, v in t.records.items() if k not in TIMED})
        for t in run.trials
    }


def same(one, other):
    return json.dumps(list(untimed(one).items())) == json.dumps(list(untimed(other).items()))


def unlike(one, other):
    """The columns in which two trials differ, times aside."""
    assert one.records.keys() == other.records.keys()
    return {name for name in one.records if str(one.records[name]) != str(other.records[name])} - TIMED


def assert_close(one, other, tolerance=1e-5):
    """Two trials measured the same, up to rounding."""
    for column in one.records.keys() & set(COMPARED):
        for a, b in zip(one.records[column], other.records[column], strict=True):
            assert math.isnan(a) == math.isnan(b)
            assert math.isnan(a) or abs(a - b) <= tolerance, (one.method, column, a, b)
