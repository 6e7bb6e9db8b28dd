"""Deterministic solvers: every contender on every problem, exact derivatives, exact resumption."""

import pytest
import torch

from orthoptim_experiments.problems.solvers.experiment import Solvers
from orthoptim_experiments.problems.solvers.problem import hessian
from tests.orthoptim_experiments.helpers import begin, whole_and_resumed

EXPERIMENT = Solvers()
SIZES = {"p": 6, "n": 8, "side": 3}


@pytest.mark.parametrize("variant", EXPERIMENT.variants)
@pytest.mark.parametrize("method", EXPERIMENT.methods({}))
def test_every_contender_reaches_ten_digits(method, variant):
    problem = begin(EXPERIMENT, method, variant=variant, sizes=SIZES)
    while problem.outcome() is None:
        problem.advance()
    values = problem.evaluate()
    assert problem.outcome().status == "converged"
    assert values["projected_gap"] < 1e-10
    assert values["evaluations"] >= problem.step
    assert values["distance"] < 1e-6


@pytest.mark.parametrize("variant", EXPERIMENT.variants)
def test_gradients_and_hessians_are_derivatives(variant):
    solving = begin(EXPERIMENT, "POGO-BB", variant=variant, sizes=SIZES)
    problem = solving.problem
    x = problem.x.detach().clone()
    v = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))

    def at(point):
        problem.x.data.copy_(point)
        problem.differentiate()
        return problem.value(), problem.x.grad.clone()

    (low, before), (high, after), (_, grad) = at(x - 1e-5 * v), at(x + 1e-5 * v), at(x)
    assert (high - low) / 2e-5 == pytest.approx(float((grad * v).sum()), rel=1e-6)
    torch.testing.assert_close((after - before) / 2e-5, hessian(problem, v), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", ["POGO-LBFGS-search", "POGO-CG", "pymanopt-CG", "pymanopt-TR"])
def test_a_trial_resumes_to_the_same_values(method):
    one, two = (problem.evaluate() for problem in whole_and_resumed(EXPERIMENT, method, 6, sizes=SIZES))
    assert two.pop("evaluations") - one.pop("evaluations") in (0, 1)  # a search evaluates its point again
    assert one == two


def test_an_error_of_a_solver_is_that_of_its_step():
    problem = begin(EXPERIMENT, "pymanopt-CG", sizes=SIZES)
    problem.problem.differentiate = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        problem.advance()
