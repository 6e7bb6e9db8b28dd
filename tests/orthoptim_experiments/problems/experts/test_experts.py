"""The mixture of experts: its routing against a loop over experts, and a run of the experiment."""

import pytest
import torch

from orthoptim_experiments.problems.experts.experiment import ExpertExperiment
from orthoptim_experiments.problems.experts.model import Experts
from tests.orthoptim_experiments.helpers import begin, whole_and_resumed

EXPERIMENT = ExpertExperiment()


def test_every_expert_answers_the_rows_it_chooses():
    torch.manual_seed(0)
    experts = Experts(4, 3, 6, choices=2).double()
    x = torch.randn(10, 6, dtype=torch.float64)
    gates = (x @ experts.router.mT).softmax(-1)
    expected = torch.zeros_like(x)
    for expert in range(4):
        for row in gates[:, expert].argsort(descending=True)[:5]:  # 2 · 10 rows among 4 experts
            inside = (experts.up[expert] @ x[row]).relu()
            expected[row] += gates[row, expert] * (experts.down[expert].mT @ inside)
    torch.testing.assert_close(experts(x), expected)


@pytest.mark.parametrize("method", EXPERIMENT.methods({}))
def test_every_contender_trains_and_resumes(method):
    before = begin(EXPERIMENT, method).evaluate()
    whole, resumed = whole_and_resumed(EXPERIMENT, method, 6)
    values = whole.evaluate()
    assert values == resumed.evaluate()
    assert values["loss"] < before["loss"]
    assert (values["max_distance"] < 1e-2) == (method != "Adam")
