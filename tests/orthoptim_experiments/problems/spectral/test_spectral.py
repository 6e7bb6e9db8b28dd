"""The comparison of spectral with Frobenius steps."""

import pytest

from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.methods import find
from orthoptim_experiments.problems.spectral.experiment import Spectral

EXPERIMENT = Spectral()


def begin(config, method):
    problem = EXPERIMENT.problem(config, method, 0)
    problem.begin(find(method).build(problem.parameters(), EXPERIMENT.methods(config)[method]))
    return problem


@pytest.mark.parametrize("variant", EXPERIMENT.variants)
@pytest.mark.parametrize("method", EXPERIMENT.default_methods)
def test_rates_fall_and_the_gap_shrinks(variant, method):
    problem = begin(configuration(EXPERIMENT, "tiny", variant=variant), method)
    first = problem.evaluate()
    while problem.outcome() is None:
        problem.advance()
    values = problem.evaluate()
    assert problem.step == problem.budget
    assert problem.optimizer.param_groups[0]["lr"] < 0.1 * problem.rates[0]
    assert values["log_gap"] < first["log_gap"] - 0.2
    assert values["distance"] < 1e-4


def test_a_trial_resumes_to_the_same_values():
    config = configuration(EXPERIMENT, "tiny", variant="pca")
    whole, first, second = (begin(config, "StiefelMuon") for _ in range(3))
    for _ in range(20):
        whole.advance()
    for _ in range(10):
        first.advance()
    second.load_state_dict(first.state_dict())
    for _ in range(10):
        second.advance()
    assert whole.evaluate() == second.evaluate()
