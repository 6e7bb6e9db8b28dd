"""The cost of a step of each method, on networks of the tiny scale."""

import json

import pytest

from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.methods import find
from orthoptim_experiments.problems import EXPERIMENTS, cost
from tests.orthoptim_experiments.helpers import invoke


@pytest.mark.parametrize("name", ["cnn-kernels", "circuits"])
def test_every_method_is_timed_and_shares_are_of_an_epoch(name, tmp_path, monkeypatch):
    path = tmp_path / "cost.json"
    result = invoke("cost", name, "--scale", "tiny", "--rounds", 1, "--json", path)
    assert result.exit_code == 0, result.output
    found = {row["method"]: row for row in json.loads(path.read_text())[name]}
    experiment = EXPERIMENTS[cost.WORKLOADS[name].experiment]
    offered = experiment.methods(configuration(experiment, "tiny", variant=cost.WORKLOADS[name].variant))
    assert found.keys() == {method for method in cost.METHODS if method in offered and find(method).installed}
    assert {"POGO", "RGD", "RSDM"} <= found.keys()
    assert all(row["step"] > 0 and row["passes"] > 0 for row in found.values())
    assert "of an epoch" in result.stdout


def test_the_share_and_the_training():
    costs = [cost.Cost("POGO", 1.0, 3.0, steps=10, epochs=2.0), cost.Cost("RSDM", 360.0, 3.0, steps=10, epochs=2.0)]
    assert costs[0].share == 0.25
    assert [row[-1] for row in cost.table(costs)] == ["20.0 s", "2.00 h"]
    assert [row[2] for row in cost.table(costs)] == ["1", "360"]
