"""`orthoptim run circuits`: its options, and what it refuses."""

from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.problems.circuits.training import CircuitTraining
from tests.orthoptim_experiments.helpers import invoke


def test_units_and_methods(tmp_path):
    small = ["--scale", "tiny", "--threads", 1, "--train-images", 100, "--epochs", 1]
    result = invoke("run", "circuits", *small, "--units", 3, "--methods", "POGO-safe", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("*.jsonl")
    found = load(path)
    assert found.config["units"] == 3
    assert found.trials[0].method == "POGO-safe"
    assert "|log Z|" in result.stdout


def test_laptop_scale_on_real_images(real_data, monkeypatch):
    monkeypatch.setenv("ORTHOPTIM_DATA", str(real_data))
    problem = CircuitTraining(configuration(EXPERIMENTS["circuits"], "laptop"), 0)
    assert len(problem.loader.images.labels) == 57_000
    assert problem.validation.shape == (3_000, 1, 28, 28)
    assert sum(param.shape[0] for param in problem.parameters()) == 1049
    assert problem.loader.next_bytes().shape == (256, 1, 28, 28)
