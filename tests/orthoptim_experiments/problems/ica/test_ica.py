"""Independent components: all contenders find stationary points; data are white, and of real pictures."""

import pytest
import torch

from orthoptim_experiments.problems.ica.data import amari, mixture
from orthoptim_experiments.problems.ica.experiment import ICA
from tests.orthoptim_experiments.helpers import begin, whole_and_resumed

EXPERIMENT = ICA()


@pytest.mark.parametrize("method", EXPERIMENT.methods({}))
def test_every_contender_finds_a_stationary_point_and_separates(method):
    pytest.importorskip("sklearn")
    problem = begin(EXPERIMENT, method, variant="pictures")
    before = problem.evaluate()
    while problem.outcome() is None:
        problem.advance()
    after = problem.evaluate()
    assert after["gradient_norm"] < 1e-8
    assert after["loss"] < before["loss"]
    assert after["amari"] < 0.5 * before["amari"]
    assert after["distance"] < 1e-6


@pytest.mark.parametrize("variant", EXPERIMENT.variants)
def test_signals_are_white(variant):
    if variant == "pictures":
        pytest.importorskip("sklearn")
    z, mixing, start = mixture(variant, 4, 32, 0)
    torch.testing.assert_close(z @ z.T / z.shape[1], torch.eye(4, dtype=torch.float64))
    assert (mixing is None) == (variant == "digits")
    assert start.shape == (4, 4)


def test_the_gradient_is_the_derivative():
    problem = begin(EXPERIMENT, "POGO-BB")
    w, v = problem.x.detach().clone(), torch.randn(4, 4, dtype=torch.float64)
    grad = problem.x.grad.clone()
    values = []
    for sign in (-1, 1):
        problem.x.data.copy_(w + sign * 1e-5 * v)
        values.append(problem.closure())
    assert (values[1] - values[0]) / 2e-5 == pytest.approx(float((grad * v).sum()), rel=1e-6)


@pytest.mark.parametrize("method", ["POGO-BB", "POGO-LBFGS-search", "Picard"])
def test_a_trial_resumes_to_the_same_values(method):
    one, two = (problem.evaluate() for problem in whole_and_resumed(EXPERIMENT, method, 6))
    assert abs(two.pop("evaluations") - one.pop("evaluations")) <= 1
    assert one == two


def test_amari_does_not_see_order_signs_and_sizes():
    gain = torch.diag(torch.tensor([1.0, -2.0, 3.0]))[[2, 0, 1]]
    assert amari(gain) == 0
    assert 0 < amari(gain + 0.1) < 1
