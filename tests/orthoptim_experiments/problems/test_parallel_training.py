"""Several processes train what one trains; they agree on how trials end, and on what cannot be run."""

import fcntl

import pytest
import torch

from orthoptim_experiments.harness import ranks, runner
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import ResultsError
from orthoptim_experiments.problems.circuits.training import CircuitTraining
from tests.orthoptim_experiments.helpers import (
    SMALL_CNN,
    Quiet,
    StoppingOneRank,
    assert_close,
    make_job,
    run_job,
    unlike,
)
from tests.orthoptim_experiments.together import together

# Training amplifies rounding; in 64 bits little enough.
CASES = {
    "cnn": (("POGO", "RSDM", "Adam"), SMALL_CNN),
    "circuits": (("POGO", "LandingPC"), {"train_images": 600, "epochs": 2.0}),
}


def run_all(out, nproc, dtype):
    """All methods; with more than two ranks the first of each problem."""
    return {
        name: run_job(out, name, methods if nproc <= 2 else methods[:1], nproc, dtype, **sizes)[0]
        for name, (methods, sizes) in CASES.items()
    }


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
        assert len(found.trials) == (len(CASES[name][0]) if world_size == 2 else 1)
        for one, other in zip(alone[name].trials, found.trials, strict=False):
            assert (one.status, one.method, len(one)) == ("budget", other.method, len(other))
            assert (one.digest, len(other.digest)) == ("", 16)  # that all ranks had at the end
            assert one.pictures.keys() == other.pictures.keys()
            assert_close(one, other)


def run_awry(out):
    """Two methods of which one cannot be built; one rank is led astray in another run; a third finds no file."""
    small = {"train_images": 80, "epochs": 1.0, "batch_size": 25}
    failed = run_job(out / "failed", "circuits", ("RGD:retraction=none", "POGO"), 2, **small)[0]

    astray = CircuitTraining.advance

    def advance(self):
        astray(self)
        with torch.no_grad():
            self.model.leaves.mul_(1 + 1e-12 * ranks.rank())

    CircuitTraining.advance = advance
    different = run_job(out / "different", "circuits", ("LandingPC",), 2, **small)[0]
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
    assert [(t.method, t.status) for t in load(failed).trials] == [
        ("RGD:retraction=none", "failed"),
        ("POGO", "budget"),
    ]
    (trial,) = load(different).trials
    assert trial.status == "failed"
    assert "different models" in trial.message


def cut_and_go_on(out):
    job = make_job(out / "cut", "cnn", ("POGO",), 2, **SMALL_CNN)
    with pytest.raises(runner.Interrupted):
        runner.run(job, StoppingOneRank())
    watcher = Quiet()
    runner.run(job, watcher)
    whole = make_job(out / "whole", "cnn", ("POGO",), 2, **SMALL_CNN)
    runner.run(whole, Quiet())
    return watcher.begun, job.path, whole.path


def test_a_signal_to_one_stops_all_at_one_step_and_they_go_on_exactly(tmp_path):
    (begun, path, whole), (others, *_) = together(2, cut_and_go_on, tmp_path)
    assert begun == others == [("POGO", 0, 3)]
    (one,), (other,) = load(path).trials, load(whole).trials
    assert one.digest == other.digest != ""
    assert unlike(one, other) == set()
