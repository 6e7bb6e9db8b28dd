"""Several processes train what one trains; they agree on how trials end, and on what cannot be run."""

import fcntl
import math
import os
import signal

import pytest
import torch

from orthoptim.experiments import runner
from orthoptim.experiments.circuits.training import CircuitTraining
from orthoptim.experiments.experiment import EXPERIMENTS, configuration
from orthoptim.experiments.parallel import ranks
from orthoptim.experiments.results import ResultsError, load
from tests.experiments.parallel.together import together
from tests.experiments.test_runner import Quiet

# Training amplifies rounding; in 64 bits little enough.
SMALL = {"train_images": 120, "test_images": 41, "batch_size": 30, "epochs": 2.0, "widths": [8, 8, 8]}
CASES = {
    "cnn": (("POGO", "RSDM", "Adam"), SMALL),
    "circuits": (("POGO", "LandingPC"), {"train_images": 600, "epochs": 2.0}),
}
COMPARED = ("loss", "train_loss", "accuracy", "bpd", "train_bpd", "test_bpd", "log_z", "lr", "epoch", "distance")


def make_job(out, name, methods, nproc, dtype="float64", overrides=None, **sizes):
    experiment = EXPERIMENTS[name]
    config = configuration(experiment, "tiny", nproc=nproc, dtype=dtype, sizes=sizes, overrides=overrides)
    return runner.Job(experiment, config, methods, (0,), out)


def run(name, *arguments, **options):
    """The run as it is on the disk, and what this rank was told of it."""
    watcher = Quiet()
    job = make_job(name, *arguments, **options)
    runner.run(job, watcher)
    return job.path, watcher.ended


def run_all(out, nproc, dtype):
    return {name: run(out, name, methods, nproc, dtype, **sizes)[0] for name, (methods, sizes) in CASES.items()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    threads = torch.get_num_threads()
    yield {name: load(path) for name, path in run_all(tmp_path_factory.mktemp("alone"), 1, "float64").items()}
    torch.set_num_threads(threads)


@pytest.mark.parametrize("world_size", [2, 4])
def test_losses_are_those_of_one_process(tmp_path, alone, world_size):
    paths = together(world_size, run_all, tmp_path, world_size, "float64")[0]
    for name, path in paths.items():
        found = load(path)
        assert found.id != alone[name].id
        assert found.config["nproc"] == found.environment["nproc"] == world_size
        for one, other in zip(alone[name].trials, found.trials, strict=True):
            assert (one.status, one.method, len(one)) == ("budget", other.method, len(other))
            assert (one.digest, len(other.digest)) == ("", 16)  # that all ranks had at the end
            assert one.pictures.keys() == other.pictures.keys()
            for column in one.records.keys() & set(COMPARED):
                largest = max(abs(a - b) for a, b in pairs(one.records[column], other.records[column]))
                assert largest <= 1e-5, (one.method, column, largest)


def pairs(one, other):
    for a, b in zip(one, other, strict=True):
        assert math.isnan(a) == math.isnan(b)
        if not math.isnan(a):
            yield a, b


def run_awry(out):
    """Two methods of which one cannot be built; one rank is led astray in another run; a third finds no file."""
    small = {"train_images": 80, "epochs": 1.0, "batch_size": 25}
    refused = {"RGD": {"retraction": "none"}}
    failed = run(out / "failed", "circuits", ("RGD", "POGO"), 2, overrides=refused, **small)[0]

    astray = CircuitTraining.advance

    def advance(self):
        astray(self)
        with torch.no_grad():
            self.model.leaves.mul_(1 + 1e-12 * ranks.rank())

    CircuitTraining.advance = advance
    different = run(out / "different", "circuits", ("LandingPC",), 2, **small)[0]
    CircuitTraining.advance = astray

    locked = make_job(out / "locked", "circuits", ("POGO",), 2, **small)
    held = None
    if ranks.is_first():
        locked.path.parent.mkdir()
        held = open(locked.path, "w")  # noqa: SIM115
        fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(ResultsError, match="is being written by another process"):
        runner.run(locked, Quiet())
    return failed, different


def test_ranks_fail_together(tmp_path):
    failed, different = together(2, run_awry, tmp_path)[0]
    assert [(t.method, t.status) for t in load(failed).trials] == [("RGD", "failed"), ("POGO", "budget")]
    (trial,) = load(different).trials
    assert trial.status == "failed"
    assert "different models" in trial.message


class Stopping(Quiet):
    """Tells one rank to end, as the agent does with all of them."""

    def progress(self, step, values):
        if step == 2 and ranks.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def cut_and_go_on(out):
    job = make_job(out / "cut", "cnn", ("POGO",), 2, **SMALL)
    with pytest.raises(runner.Interrupted):
        runner.run(job, Stopping())
    watcher = Quiet()
    runner.run(job, watcher)
    whole = make_job(out / "whole", "cnn", ("POGO",), 2, **SMALL)
    runner.run(whole, Quiet())
    return watcher.begun, job.path, whole.path


def test_a_signal_to_one_stops_all_at_one_step_and_they_go_on_exactly(tmp_path):
    (begun, path, whole), (others, *_) = together(2, cut_and_go_on, tmp_path)
    assert begun == others == [("POGO", 0, 3)]
    (one,), (other,) = load(path).trials, load(whole).trials
    assert one.digest == other.digest != ""
    assert unlike(one, other) == set()


def unlike(one, other):
    """The columns in which two trials differ, times aside."""
    timed = {"time", "processor_time", "memory", "optimizer_share", "images_per_second"}
    assert one.records.keys() == other.records.keys()
    return {name for name in one.records if str(one.records[name]) != str(other.records[name])} - timed
