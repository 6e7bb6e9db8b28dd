"""`orthoptim run cnn` and `run vit`: their options, what they refuse, and a run that is interrupted."""

import signal
import time

import pytest

from orthoptim_experiments.problems.classification.training import split_images
from orthoptim_experiments.problems.datasets import load
from tests.forks import Command
from tests.orthoptim_experiments.helpers import invoke, the_run

SMALL = ["--scale", "tiny", "--threads", "1", "--train-images", "200", "--batch-size", "50"]
TIMES = ("time", "processor_time", "optimizer_time", "optimizer_share", "images_per_second")


def test_options_of_cnn(tmp_path):
    options = ["--constraint", "kernels", "--widths", "8,8,8", "--epochs", "1.5", "--init", "project", "--amp"]
    result = invoke("run", "cnn", *SMALL, *options, "--methods", "POGO,Adam", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = the_run(tmp_path)
    assert found.config["widths"] == [8, 8, 8]
    assert (found.config["variant"], found.config["init"], found.config["amp"]) == ("kernels", "project", True)
    pogo, adam = found.trials
    assert pogo.records["step"] == [0, 4, 6]
    assert pogo.records["epoch"] == [0, 1, 1.5]
    assert 0 <= pogo.records["tta_accuracy"][-1] <= 1
    assert pogo.records["max_distance"][-1] < 1e-2
    assert "distance" not in adam.records
    assert "accuracy" in result.stdout


def test_a_sweep_is_validated_on_images_that_are_held_out_and_names_the_best(tmp_path):
    options = ["--epochs", 1, "--widths", "8,8,8", "--methods", "RGD", "--grid", "RGD.lr=0.0001,0.01"]
    result = invoke("run", "cnn", *SMALL, *options, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = the_run(tmp_path)
    assert found.config["held_out"] == 20
    last = {trial.method: trial.records["accuracy"][-1] for trial in found.trials}
    assert f"best of the sweep: {max(last, key=last.get)}, by accuracy, of 2 contenders" in result.stdout
    data, config = load("digits"), {"train_images": 200, "test_images": 30}
    train, held_out = split_images({**config, "held_out": 20}, data)
    assert (len(train.labels), len(held_out.labels)) == (180, 20)
    assert held_out.labels.equal(data.train.labels[180:200])
    assert split_images(config, data)[1].labels.equal(data.test.labels[:30])


def test_options_of_vit(tmp_path):
    result = invoke(
        "run", "vit", *SMALL, "--dim", 8, "--depth", 1, "--epochs", 1, "--methods", "RSDM", "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    found = the_run(tmp_path)
    assert (found.config["dim"], found.config["depth"]) == (8, 1)
    assert found.trials[0].options["r"] == 2


def test_without_a_constraint_there_is_adam_alone(tmp_path):
    result = invoke("run", "cnn", *SMALL, "--constraint", "none", "--epochs", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert [trial.method for trial in the_run(tmp_path).trials] == ["Adam"]


@pytest.mark.parametrize("name", ["cnn", "vit"])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path, name):
    arguments = [name, *SMALL, "--methods", "POGO", "--epochs", "5", "--checkpoint-every", "0", "--out"]
    assert invoke("run", *arguments, tmp_path / "whole").exit_code == 0
    folder = tmp_path / "parts"
    process = Command("run", *arguments, folder)
    while process.poll() is None and not list(folder.glob(".checkpoints/*.pt")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait()[0] == 130
    assert the_run(folder).trials[-1].status is None
    again = invoke("run", *arguments, folder)
    assert "goes on at step" in again.stdout
    one, other = (the_run(each).trials[0].records for each in (tmp_path / "whole", folder))
    assert one.keys() == other.keys()
    for column in one.keys() - set(TIMES):
        assert one[column] == pytest.approx(other[column], rel=0, abs=0, nan_ok=True), column
