"""`orthoptim run circuits`: its options, and what it refuses."""

import os

import pytest
import torch
from typer.testing import CliRunner

from orthoptim_experiments.cli import commands
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.problems.circuits.training import CircuitTraining


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.setenv("ORTHOPTIM_DATA", os.environ.get("ORTHOPTIM_DATA", ""))  # --data-dir changes it
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(out, *arguments):
    return CliRunner().invoke(commands.app, ["run", "circuits", *map(str, arguments), "--out", str(out)])


def test_units_and_methods(tmp_path):
    small = ["--scale", "tiny", "--threads", 1, "--train-images", 100, "--epochs", 1]
    result = run(tmp_path, *small, "--units", 3, "--methods", "POGO-safe")
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("*.jsonl")
    found = load(path)
    assert found.config["units"] == 3
    assert found.trials[0].method == "POGO-safe"
    assert "|log Z|" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scale", "tiny", "--units", 18], "18 units are more than the 17 values of a pixel"),
        (["--scale", "tiny", "--units", "four"], "--units 'four' makes no sense; write something like 2"),
        (["--scale", "tiny", "--train-images", 50], "a batch of 50 cannot be taken from 48 images"),
        (["--data-dir", "nothing"], "run `orthoptim data fetch mnist`"),
    ],
)
def test_what_makes_no_sense(tmp_path, arguments, message):
    result = run(tmp_path, *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("orthoptim: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_laptop_scale_on_real_images(real_data, monkeypatch):
    monkeypatch.setenv("ORTHOPTIM_DATA", str(real_data))
    problem = CircuitTraining(configuration(EXPERIMENTS["circuits"], "laptop"), 0)
    assert len(problem.loader.images.labels) == 57_000
    assert problem.validation.shape == (3_000, 1, 28, 28)
    assert sum(param.shape[0] for param in problem.parameters()) == 1049
    assert problem.loader.next_bytes().shape == (256, 1, 28, 28)
