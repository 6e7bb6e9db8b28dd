"""`orthoptim run cnn` and `run vit`: their options, what they refuse, and a run that is interrupted."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from orthoptim_experiments.cli import commands
from orthoptim_experiments.harness.record_reader import load

COMMAND = [sys.executable, "-m", "orthoptim_experiments.cli"]
SMALL = ["--scale", "tiny", "--threads", "1", "--train-images", "200", "--batch-size", "50"]
TIMES = ("time", "processor_time", "optimizer_share", "images_per_second")


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    monkeypatch.setenv("ORTHOPTIM_DATA", os.environ.get("ORTHOPTIM_DATA", ""))  # --data-dir changes it
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(*arguments):
    return CliRunner().invoke(commands.app, ["run", *map(str, arguments)])


def only(folder):
    (path,) = folder.glob("*.jsonl")
    return load(path)


def test_options_of_cnn(tmp_path):
    options = ["--constraint", "kernels", "--widths", "8,8,8", "--epochs", "1.5", "--init", "project", "--amp"]
    result = run("cnn", *SMALL, *options, "--methods", "POGO,Adam", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = only(tmp_path)
    assert found.config["widths"] == [8, 8, 8]
    assert (found.config["variant"], found.config["init"], found.config["amp"]) == ("kernels", "project", True)
    pogo, adam = found.trials
    assert pogo.records["step"] == [0, 4, 6]
    assert pogo.records["epoch"] == [0, 1, 1.5]
    assert 0 <= pogo.records["tta_accuracy"][-1] <= 1
    assert pogo.records["max_distance"][-1] < 1e-2
    assert "distance" not in adam.records
    assert "accuracy" in result.stdout


def test_options_of_vit(tmp_path):
    result = run("vit", *SMALL, "--dim", 8, "--depth", 1, "--epochs", 1, "--methods", "RSDM", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = only(tmp_path)
    assert (found.config["dim"], found.config["depth"]) == (8, 1)
    assert found.trials[0].options["r"] == 2


def test_without_a_constraint_there_is_adam_alone(tmp_path):
    result = run("cnn", *SMALL, "--constraint", "none", "--epochs", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert [trial.method for trial in only(tmp_path).trials] == ["Adam"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cnn", "--constraint", "all"], "unknown variant 'all'; there are filters, kernels, none"),
        (["cnn", "--constraint", "none", "--methods", "POGO"], "unknown method 'POGO' in cnn; there are Adam"),
        (["cnn", "--widths", "8,8"], "--widths '8,8' makes no sense; write something like 8,16,16"),
        (["cnn", "--epochs", "-1"], "--epochs '-1' makes no sense"),
        (["cnn", "--epochs", "inf"], "--epochs 'inf' makes no sense"),
        (["cnn", "--batch-size", "2.5"], "--batch-size '2.5' makes no sense"),
        (["cnn", "--batch-size", "501"], "a batch of 501 cannot be taken from 500 images"),
        (["cnn", "--init", "zero"], "unknown init 'zero'; there are auto, project, random"),
        (["vit", "--dim", "7"], "dim 7 is no multiple of the number of heads, 2"),
    ],
)
def test_what_makes_no_sense(tmp_path, arguments, message):
    refused(run(*arguments, "--scale", "tiny", "--out", tmp_path), message, tmp_path)


@pytest.mark.parametrize("name", ["cnn", "vit"])
def test_missing_data(tmp_path, name):
    result = run(name, "--data-dir", tmp_path / "nothing", "--out", tmp_path)
    refused(result, "run `orthoptim data fetch cifar10`", tmp_path)


def refused(result, message, folder):
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("orthoptim: ")
    assert message in line
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["cnn", "vit"])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path, name):
    arguments = [name, *SMALL, "--methods", "POGO", "--epochs", "5", "--checkpoint-every", "0", "--out"]
    assert run(*arguments, tmp_path / "whole").exit_code == 0
    folder = tmp_path / "parts"
    command = [*COMMAND, "run", *arguments, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(folder.glob(".checkpoints/*.pt")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert only(folder).trials[-1].status is None
    again = run(*arguments, folder)
    assert "goes on at step" in again.stdout
    one, other = (only(each).trials[0].records for each in (tmp_path / "whole", folder))
    assert one.keys() == other.keys()
    for column in one.keys() - set(TIMES):
        assert one[column] == pytest.approx(other[column], rel=0, abs=0, nan_ok=True), column
