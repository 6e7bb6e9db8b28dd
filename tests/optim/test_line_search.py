"""The non-monotone line search: losses stay below their average, resumption is exact, gradients are not wasted."""

import itertools
import math

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import point
from tests.problems import pca, procrustes

BASES = {"bb": oo.BB(), "cg": oo.CG(), "lbfgs": oo.LBFGS(history_size=3)}
every_base = pytest.mark.parametrize("base", BASES.values(), ids=BASES)


class Run:
    """A problem, a search, and the losses that closures returned."""

    def __init__(self, problem, base, start=None, **options):
        self.x = torch.nn.Parameter((problem.start if start is None else start).clone())
        self.problem, self.losses = problem, []
        self.search = oo.LineSearch(oo.POGO([self.x], base=base), **options)

    def closure(self):
        self.x.grad = self.problem.gradient(self.x.detach())
        self.losses.append(float(self.problem.value(self.x.detach())))
        return self.losses[-1]

    def steps(self, count):
        return [self.search.step(self.closure) for _ in range(count)]


@every_base
@pytest.mark.parametrize("eta", [0.0, 0.85])
def test_no_loss_exceeds_the_average_of_those_before(base, eta):
    for problem in (pca(9, 12, "paper", 0), procrustes(12, 1)):
        losses = Run(problem, base, eta=eta).steps(40)
        reference, weight = losses[0], 1.0
        for loss in losses[1:]:
            assert loss <= reference + 1e-14 * abs(reference)
            reference = (eta * weight * reference + loss) / (eta * weight + 1)
            weight = eta * weight + 1
        assert losses[-1] < losses[0]


@every_base
def test_every_point_is_on_the_manifold_and_the_optimum_is_found(base):
    run = Run(procrustes(12, 0), base)
    for _ in range(400):
        run.steps(1)
        assert oo.distance(run.x) < 1e-5
        if run.problem.gap(run.x.detach()) < 1e-10:
            break
    assert run.problem.gap(run.x.detach()) < 1e-10


def test_a_step_that_is_taken_as_it_is_costs_one_gradient():
    run = Run(pca(9, 12, "code", 0), oo.BB())
    run.steps(10)
    assert run.search.func_evals == len(run.losses)
    assert run.search.func_evals <= 10 + 1 + 3  # one to begin with; a few steps are shortened


def test_steps_that_are_taken_as_they_are_are_those_of_the_optimizer():
    problem = pca(9, 12, "code", 0)
    run = Run(problem, oo.BB(), eta=1.0)
    x = torch.nn.Parameter(problem.start.clone())
    opt = oo.POGO([x], base=oo.BB())
    for _ in range(8):
        run.steps(1)
        x.grad = problem.gradient(x.detach())
        opt.step()
        if run.search.func_evals != len(run.losses) or len(run.losses) > 9:
            break
        assert torch.equal(run.x, x)


@every_base
def test_resumption_is_exact(base, tmp_path):
    problem = pca(9, 12, "paper", 0)
    whole, first = Run(problem, base), Run(problem, base)
    whole.steps(16)
    first.steps(8)
    torch.save({"opt": first.search.optimizer.state_dict(), "search": first.search.state_dict()}, tmp_path / "state")
    saved = torch.load(tmp_path / "state", weights_only=True)
    second = Run(problem, base, start=first.x.detach())
    second.search.optimizer.load_state_dict(saved["opt"])
    second.search.load_state_dict(saved["search"])
    second.steps(8)
    assert torch.equal(second.x, whole.x)
    assert second.search.state_dict() == whole.search.state_dict() | {"func_evals": whole.search.func_evals + 1}


@every_base
def test_losses_that_are_not_finite_are_left_again(base):
    run = Run(pca(9, 12, "paper", 0), base)
    plain = run.closure
    run.closure = lambda: plain() if len(run.losses) % 3 != 1 else plain() * math.inf
    run.steps(6)
    assert torch.isfinite(run.x).all()
    assert oo.distance(run.x) < 1e-5


def test_a_function_that_only_rises_keeps_the_point():
    x = point(4, 6)
    start = x.detach().clone()
    search = oo.LineSearch(oo.POGO([x], base=oo.BB()), max_ls=3)
    values = iter(range(100))

    def closure():
        x.grad = torch.ones(4, 6)
        return float(next(values))

    search.step(closure)
    assert torch.equal(x, start)


@pytest.mark.parametrize("view", ["matrix", "filters", "kernels"])
def test_maximize_views_and_ordinary_groups(view):
    """The search shortens a step ten times too long, for every kind of parameter."""
    weight, bias = point(4, 3, 3, 3, dtype=torch.float64, view=view), torch.nn.Parameter(torch.ones(4).double())
    groups = [
        {"params": [weight], "view": view, "maximize": True, "lr": 10.0, "base": oo.SGD()},
        {"params": [bias], "algorithm": "sgd", "lr": 0.4, "maximize": True},
    ]
    search = oo.LineSearch(oo.POGO(groups, lr=1.0))
    target = torch.randn(4, 3, 3, 3, dtype=torch.float64)

    def closure():
        search.optimizer.zero_grad()
        value = (weight * target).sum() - bias.square().sum()
        value.backward()
        return value

    values = [search.step(closure) for _ in range(30)]
    assert values[-1] > values[0]
    assert float(oo.distance(weight, view=view).max()) < 1e-6
    assert float(bias.abs().max()) < 0.9


@every_base
def test_scaled_matrices_keep_their_scale(base):
    """The function of X/σ: the same losses, from the same steps."""
    problem, x = procrustes(6, 0), torch.nn.Parameter(3 * procrustes(6, 0).start)
    search = oo.LineSearch(oo.POGO([x], base=base, scale=3.0), eta=0.0)
    losses = []
    for _ in range(30):

        def closure():
            x.grad = problem.gradient(x.detach() / 3) / 3
            return float(problem.value(x.detach() / 3))

        losses.append(search.step(closure))
    assert search.func_evals > 31  # some steps were shortened
    assert oo.distance(x, scale=3.0) < 1e-6
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(losses))


def test_what_it_cannot_search_is_refused():
    half = point(4, 6, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="float32 or better"):
        oo.LineSearch(oo.POGO([half], 0.1))
    groups = [{"params": [point(4, 6)], "maximize": True}, {"params": [point(4, 6, seed=1)]}]
    with pytest.raises(ValueError, match="one value of maximize"):
        oo.LineSearch(oo.POGO(groups, 0.1))
    for option in ({"eta": 1.5}, {"c1": -0.1}, {"c2": math.nan}, {"max_ls": 0}):
        with pytest.raises(ValueError, match=next(iter(option))):
            oo.LineSearch(oo.POGO([point(4, 6)], 0.1), **option)
