"""The runner: what ends how, what is recorded, and that nothing is computed twice or lost."""

import itertools
import math

import pytest
import torch

from orthoptim_experiments.harness import methods, runner
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import ResultsError
from orthoptim_experiments.problems import EXPERIMENTS
from tests.orthoptim_experiments.helpers import SMALL_CNN, Quiet, Raising, make_job, same, unlike

PCA = EXPERIMENTS["pca"]


def job(out, names=("POGO", "RGD"), seeds=(0,), experiment=PCA, **options):
    config = configuration(experiment, "tiny")
    return runner.Job(experiment, config, names, seeds, out, **options)


def test_a_run_records_all_that_was_asked_for(tmp_path):
    run = runner.run(job(tmp_path, seeds=(0, 3)), Quiet())
    assert [(t.method, t.seed, t.status) for t in run.trials] == [
        (method, seed, "converged") for seed in (0, 3) for method in ("POGO", "RGD")
    ]
    for trial in run.trials:
        columns = trial.records
        assert {
            "step",
            "time",
            "processor_time",
            "optimizer_time",
            "loss",
            "gap",
            "projected_gap",
            "distance",
            "max_distance",
        } <= columns.keys()
        assert columns["step"] == list(range(len(trial)))
        assert columns["time"][0] == 0
        assert columns["time"] == sorted(columns["time"])
        assert columns["projected_gap"][-1] < 1e-6 <= columns["projected_gap"][-2]
        assert trial.environment["torch"] == torch.__version__
    assert run.trials[0].options == {"lr": 0.25, "base": "SGD", "momentum": 0.3}
    assert run.config["n"] == 16
    assert {"cpu", "threads", "revision", "python"} <= run.environment.keys()
    assert not (tmp_path / ".checkpoints").exists()


def test_the_same_seed_gives_identical_losses(tmp_path):
    names = ("POGO", "RSDM", "LandingPC", "POGO-BB")
    assert same(runner.run(job(tmp_path / "a", names), Quiet()), runner.run(job(tmp_path / "b", names), Quiet()))


def test_what_is_complete_is_not_computed_again_and_what_is_missing_is_added(tmp_path):
    first = job(tmp_path)
    runner.run(first, Quiet())
    before = first.path.read_bytes()
    watcher = Quiet()
    runner.run(job(tmp_path, names=("POGO", "RGD", "SLPG"), seeds=(0, 1)), watcher)
    assert first.path.read_bytes().startswith(before)
    assert [end[:2] for end in watcher.ended if end[3]] == [("POGO", 0), ("RGD", 0)]
    assert watcher.begun == [("SLPG", 0, 0), ("POGO", 1, 0), ("RGD", 1, 0), ("SLPG", 1, 0)]
    assert len(load(first.path).trials) == 6


def test_records_keep_to_the_stride_and_the_end(tmp_path):
    one = job(tmp_path)
    one.config["stride"] = 20
    trial = runner.run(one, Quiet()).trials[0]
    *regular, last = trial.records["step"]
    assert regular == [20 * i for i in range(len(regular))]
    assert last == 51
    assert trial.records["projected_gap"][-1] < 1e-6


@pytest.mark.parametrize(("name", "dtype"), [("circuits", "float64"), ("vit", "float32")])
def test_more_epochs_continue_a_shorter_run_to_the_same_results(tmp_path, name, dtype):
    def run(out, epochs, watcher):
        return runner.run(make_job(out, name, ("POGO",), 1, dtype, epochs=epochs), watcher).trials[0]

    straight, watcher = run(tmp_path / "straight", 2.0, Quiet()), Quiet()
    first = run(tmp_path / "parts", 1.0, watcher)
    assert (first.status, watcher.begun) == ("budget", [("POGO", 0, 0)])
    second = run(tmp_path / "parts", 2.0, watcher)
    assert watcher.begun[1:] == [("POGO", 0, first.records["step"][-1])]
    assert second.status == straight.status
    assert unlike(second, straight) <= {"test_bpd"}  # which the shorter run has at its end, too
    assert second.records["time"] == sorted(second.records["time"])


def test_a_training_whose_learning_rate_falls_to_the_end_begins_anew(tmp_path):
    watcher = Quiet()
    for epochs in (1.0, 2.0):
        runner.run(make_job(tmp_path, "cnn", ("POGO",), 1, **{**SMALL_CNN, "epochs": epochs}), watcher)
    assert watcher.begun == [("POGO", 0, 0)] * 2
    assert not (tmp_path / ".checkpoints").exists()


def test_another_configuration_is_another_run(tmp_path):
    one, other = job(tmp_path), job(tmp_path)
    other.config["variant"] = "paper"
    assert one.path != other.path


def test_other_hyperparameters_are_another_contender_of_the_same_run(tmp_path):
    run = runner.run(job(tmp_path, ("POGO", "POGO:lr=0.1")), Quiet())
    assert [trial.method for trial in run.trials] == ["POGO", "POGO:lr=0.1"]
    assert run.trials[1].options == {"lr": 0.1, "base": "SGD", "momentum": 0.3}


def test_a_method_that_raises_has_failed_and_the_others_go_on(tmp_path, monkeypatch):
    def broken(self, closure=None):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr("orthoptim.RGD.step", broken)
    names = ("RGD", "POGO")
    run = runner.run(job(tmp_path, names), Quiet())
    assert [trial.status for trial in run.trials] == ["failed", "converged"]
    assert run.trials[0].message.startswith("RuntimeError: out of memory (test_runner.py, line ")
    # it stays so, until it is asked for again
    monkeypatch.undo()
    assert [end[2:] for end in _again(tmp_path, names)] == [("failed", True), ("converged", True)]
    assert [end[2:] for end in _again(tmp_path, names, retry=True)] == [("converged", False), ("converged", True)]
    assert len(load(job(tmp_path).path).trials) == 2


def _again(out, names, **options):
    watcher = Quiet()
    runner.run(job(out, names, **options), watcher)
    return watcher.ended


def test_a_method_that_cannot_be_built_has_failed(tmp_path):
    run = runner.run(job(tmp_path, ("RSDM:r=17", "POGO")), Quiet())
    assert [trial.status for trial in run.trials] == ["failed", "converged"]
    assert "r: 17" in run.trials[0].message


def test_timeouts_and_divergence_are_results(tmp_path):
    run = runner.run(job(tmp_path, ("POGO",), timeout=0.0), Quiet())
    assert (run.trials[0].status, len(run.trials[0])) == ("timeout", 1)
    run = runner.run(job(tmp_path, ("SLPG:lr=100.0",)), Quiet())
    assert run.trials[-1].status == "diverged"
    assert all(math.isfinite(time) for time in run.trials[-1].records["time"])


def test_a_trial_that_timed_out_goes_on_with_a_larger_budget(tmp_path, monkeypatch):
    ticks = itertools.count()  # every look at the clock takes a second
    monkeypatch.setattr("time.process_time", lambda: float(next(ticks)))
    whole = runner.run(job(tmp_path / "whole", ("POGO",)), Quiet())
    run = runner.run(job(tmp_path / "cut", ("POGO",), timeout=30.0), Quiet())
    assert run.trials[0].status == "timeout"
    assert _again(tmp_path / "cut", ("POGO",), timeout=20.0)[0][2:] == ("timeout", True)
    watcher = Quiet()
    run = runner.run(job(tmp_path / "cut", ("POGO",)), watcher)
    assert watcher.begun[0][2] > 0
    assert same(run, whole)
    assert not (tmp_path / "cut" / ".checkpoints").exists()


@pytest.mark.parametrize(("at", "every"), [(1, 0.0), (15, 0.0), (15, 1e9)])
def test_a_trial_goes_on_from_its_checkpoint(tmp_path, at, every):
    names = ("POGO", "RSDM", "POGO-BB")
    whole = runner.run(job(tmp_path / "whole", names), Quiet())
    one = job(tmp_path / "cut", names, checkpoint_every=every)
    for _ in range(2):
        with pytest.raises(ResultsError):
            runner.run(one, Raising(at, ResultsError("stop")))
    watcher = Quiet()
    run = runner.run(one, watcher)
    assert watcher.begun[0][2] == (at - 1 if every == 0 else 0)
    assert same(run, whole)


def test_a_checkpoint_that_cannot_be_read_or_is_ahead_of_the_records_is_not_used(tmp_path):
    whole = runner.run(job(tmp_path / "whole"), Quiet())
    one = job(tmp_path / "cut", checkpoint_every=0.0)
    with pytest.raises(ResultsError):
        runner.run(one, Raising(9, ResultsError("stop")))
    (checkpoint,) = (tmp_path / "cut" / ".checkpoints").iterdir()
    lines = one.path.read_bytes().splitlines(keepends=True)
    one.path.write_bytes(b"".join(lines[:-4]))  # lost with the power
    watcher = Quiet()
    with pytest.raises(ResultsError):
        runner.run(one, Raising(9, ResultsError("stop")))
    checkpoint.write_bytes(b"torn")
    assert same(runner.run(one, watcher), whole)
    assert watcher.begun[0] == ("POGO", 0, 0)


SHORT = {
    "cnn": SMALL_CNN | {"epochs": 1.0},
    "vit": {"train_images": 96, "test_images": 41, "epochs": 1.0},
    "circuits": {"train_images": 300, "test_images": 101, "epochs": 1.0},
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_default_method_runs_and_every_claim_is_judged(tmp_path, name):
    experiment = EXPERIMENTS[name]
    one = job(tmp_path, experiment.default_methods, experiment=experiment)
    one.config.update(SHORT.get(name, {"budget": 30}))
    run = runner.run(one, Quiet())
    assert {trial.status for trial in run.trials} <= {"converged", "budget"}
    for claim in experiment.claims:
        judged = claim.judge(run)
        assert judged.verdict in ("holds", "fails", "undecided", "not measured")
        assert judged.measured


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_without_trials_nothing_is_measured(tmp_path, name):
    run = runner.run(job(tmp_path, (), experiment=EXPERIMENTS[name]), Quiet())
    assert {claim.judge(run).verdict for claim in EXPERIMENTS[name].claims} == {"not measured"}


def test_every_offered_method_has_options_that_build_it():
    for experiment in EXPERIMENTS.values():
        for name, options in experiment.methods(configuration(experiment, "paper")).items():
            if methods.find(name).installed:
                methods.check(name, options)
