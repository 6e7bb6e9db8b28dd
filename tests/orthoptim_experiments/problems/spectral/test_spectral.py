"""The comparison of spectral with Frobenius steps."""

import pytest

from orthoptim_experiments.problems.spectral.experiment import Spectral
from tests.orthoptim_experiments.helpers import begin, whole_and_resumed

EXPERIMENT = Spectral()


@pytest.mark.parametrize("variant", EXPERIMENT.variants)
@pytest.mark.parametrize("method", EXPERIMENT.default_methods)
def test_rates_fall_and_the_gap_shrinks(variant, method):
    problem = begin(EXPERIMENT, method, variant=variant)
    first = problem.evaluate()
    while problem.outcome() is None:
        problem.advance()
    values = problem.evaluate()
    assert problem.step == problem.budget
    assert problem.optimizer.param_groups[0]["lr"] < 0.1 * problem.rates[0]
    assert values["log_gap"] < first["log_gap"] - 0.2
    assert values["distance"] < 1e-4


def test_a_trial_resumes_to_the_same_values():
    whole, resumed = whole_and_resumed(EXPERIMENT, "StiefelMuon", 20)
    assert whole.evaluate() == resumed.evaluate()
