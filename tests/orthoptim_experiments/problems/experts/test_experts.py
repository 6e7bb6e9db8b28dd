"""The mixture of experts: its routing against a loop over experts, and a run of the experiment."""

import pytest
import torch

from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.methods import find
from orthoptim_experiments.problems.experts.experiment import ExpertExperiment
from orthoptim_experiments.problems.experts.model import Experts

EXPERIMENT = ExpertExperiment()


def begin(config, method):
    problem = EXPERIMENT.problem(config, method, 0)
    problem.begin(find(method).build(problem.parameters(), EXPERIMENT.methods(config)[method]))
    return problem


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
    config = configuration(EXPERIMENT, "tiny")
    whole, first, second = (begin(config, method) for _ in range(3))
    before = whole.evaluate()
    while whole.outcome() is None:
        whole.advance()
    for _ in range(3):
        first.advance()
    second.load_state_dict(first.state_dict())
    while second.outcome() is None:
        second.advance()
    values = whole.evaluate()
    assert values == second.evaluate()
    assert values["loss"] < before["loss"]
    assert (values["max_distance"] < 1e-2) == (method != "Adam")
