"""Barzilai–Borwein: no learning rate, a third of the iterations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim.base.bb import step_length
from tests.conformance.methods import point
from tests.optim import oracles
from tests.problems import iterations, pca, procrustes
from tests.reference import pogo_step
from tests.sampling import first


def tuned_pca(x):
    return oo.POGO(x, 0.25, oo.SGD(momentum=0.3))


def tuned_procrustes(x):
    return oo.POGO(x, 0.5, oo.SGD(momentum=0.1))


def needs_a_third(problem, tuned):
    count = iterations(problem, lambda x: oo.POGO(x, base=oo.BB()), 1000)
    assert count is not None
    # the paper's tuned POGO has not arrived one step before three times as many
    assert iterations(problem, tuned, 3 * count - 1) is None
    return count


@pytest.mark.parametrize("seed", first(1, range(5)))
@pytest.mark.parametrize(("variant", "p"), [("code", 150), ("paper", 75)])
def test_at_most_a_third_of_the_iterations_on_pca(variant, p, seed):
    needs_a_third(pca(p, p * 4 // 3, variant, seed), tuned_pca)


@pytest.mark.parametrize("seed", first(1, range(5)))
@pytest.mark.parametrize("n", [50, 100])
def test_at_most_a_third_of_the_iterations_on_procrustes(n, seed):
    needs_a_third(procrustes(n, seed), tuned_procrustes)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("p", [150, 375])
@pytest.mark.parametrize("variant", ["code", "paper"])
def test_at_most_a_third_of_the_iterations_on_pca_up_to_500(variant, p, seed):
    needs_a_third(pca(p, p * 4 // 3, variant, seed), tuned_pca)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [200, 500])
def test_at_most_a_third_of_the_iterations_on_procrustes_up_to_500(n, seed):
    needs_a_third(procrustes(n, seed), tuned_procrustes)


@given(seed=st.integers(0, 10_000), near_saddle=st.booleans(), scale=st.floats(-6, 6), variant=st.booleans())
def test_never_diverges_from_any_start(seed, near_saddle, scale, variant):
    """Strict landing: within 1e-5 always, and no start ends higher than it began."""
    problem = pca(6, 9, "code" if variant else "paper", seed) if seed % 2 else procrustes(6, seed)
    x = torch.nn.Parameter(problem.start.clone())
    if near_saddle:  # all but stationary: the quotients are of rounding errors
        x.data = oo.project_(torch.eye(*x.shape, dtype=torch.float64) + 1e-9 * x.data)
    opt = oo.POGO([x], base=oo.BB(), landing="strict")
    start, best = float(problem.value(x.detach())), torch.inf
    for _ in range(60):
        x.grad = 10.0**scale * problem.gradient(x.detach())
        opt.step()
        assert torch.isfinite(x).all()
        assert oo.distance(x) < 1e-5
        best = min(best, float(problem.value(x.detach())))
    assert best <= start + 1e-9 * abs(start)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_agrees_with_its_oracle_over_50_steps(dtype):
    """Both step from the same points: the iteration is chaotic, and two runs part after some twenty steps."""
    param = point(3, 4, 6, dtype=dtype)
    directions = [oracles.BB() for _ in range(3)]
    opt = oo.POGO([param], base=oo.BB(), landing="safe")
    for t in range(50):
        if t % 5 == 0:  # before the optimum is reached, another function
            target = torch.randn(3, 4, 6, dtype=dtype)
        param.grad = param.detach() * torch.linspace(1, 9, 6, dtype=torch.float64) - target
        expected = [
            pogo_step(x.numpy(), d(x, g).numpy(), 1.0, "safe")
            for x, g, d in zip(param.detach(), param.grad, directions, strict=True)
        ]
        opt.step()
        for one, two in zip(param.detach(), expected, strict=True):
            torch.testing.assert_close(one, torch.as_tensor(two), rtol=0, atol=1e-10)


def test_a_quotient_that_is_not_finite_leaves_the_step_length():
    """Twice the same gradient at a stationary point: S = Y = 0."""
    param = point(4, 6, dtype=torch.float64)
    opt = oo.POGO([param], base=oo.BB())
    param.grad = torch.randn(4, 6, dtype=torch.float64)
    opt.step()
    length = opt.state[param]["step_length"].clone()
    opt.state[param]["last_point"].copy_(param.detach())
    opt.state[param]["last_relative_gradient"].copy_(oracles.relative_gradient(param.detach(), param.grad))
    opt.step()
    assert torch.equal(opt.state[param]["step_length"], length)
    assert torch.isfinite(param).all()


def test_a_start_at_a_stationary_point_stays_there():
    param = torch.nn.Parameter(torch.eye(3, 5))
    opt = oo.POGO([param], base=oo.BB())
    for _ in range(3):
        param.grad = param.detach().clone()
        opt.step()
    torch.testing.assert_close(param.detach(), torch.eye(3, 5))


@pytest.mark.parametrize("shape", [(1, 1), (5, 1, 1), (3, 3)])
@pytest.mark.parametrize("normal", [1.0, 1e3, 1e30])
def test_a_relative_gradient_of_exactly_zero_moves_nothing_and_skips_nothing(shape, normal):
    param = torch.nn.Parameter(torch.eye(shape[-1]).expand(shape).clone())
    before = param.detach().clone()
    opt = oo.POGO([param], base=oo.BB())
    for t in range(3):
        param.grad = normal * (t + 1) * before
        opt.step()
    assert torch.equal(param, before)
    assert opt.drift()[0].skipped == 0


def test_a_matrix_without_a_direction_so_far_moves_when_there_is_one():
    param = torch.nn.Parameter(torch.eye(3))
    opt = oo.POGO([param], base=oo.BB())
    for t in range(4):
        param.grad = torch.eye(3) if t < 2 else torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, 0, 0]])
        opt.step()
    assert float((param.detach() - torch.eye(3)).abs().max()) > 0.01
    assert oo.distance(param) < 1e-5


def test_the_first_leap_after_a_stationary_point_is_a_tenth_of_a_radian_for_each_row():
    """No length is kept from there: the last one would be that of a direction of zeros."""
    param = torch.nn.Parameter(torch.eye(3))
    opt = oo.POGO([param], base=oo.BB())
    param.grad = torch.eye(3)
    opt.step()
    assert opt.state[param]["step_length"] == 0
    param.grad = torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, 0, 0]])
    opt.step()
    relative = oracles.relative_gradient(torch.eye(3), param.grad)
    leap = opt.state[param]["step_length"] * torch.linalg.matrix_norm(relative)
    torch.testing.assert_close(leap, torch.tensor(0.1 * 3**0.5))


def test_a_step_length_is_a_quotient_that_is_finite_and_positive_or_the_last():
    quotient = torch.tensor([2.0, 0.0, float("inf"), float("nan")])
    found = step_length(quotient, torch.ones(4, 2, 3), torch.full((4,), 3.0), torch.full((4,), 5.0))
    assert found.tolist() == [2.0, 3.0, 3.0, 3.0]


def test_a_step_length_times_the_gradient_stays_in_range():
    """A gradient that is almost normal: its relative gradient alone would allow a length of 1e37."""
    x, grad = torch.eye(3)[None], 1e10 * torch.eye(3)[None]
    grad[0, 0, 1] = 1e-29
    state = {"last_point": x, "last_relative_gradient": torch.zeros_like(x), "step_length": torch.zeros(1)}
    direction, new_state = oo.BB.direction(x, grad, state, torch.ones(1))
    torch.testing.assert_close(new_state["step_length"], torch.tensor([torch.finfo(torch.float32).max ** 0.5 / 1e10]))
    assert torch.isfinite(direction.whole()).all()


def test_an_almost_normal_gradient_leaps_as_far_as_its_relative_gradient_says():
    """ηR is of order one where ηG would overflow."""
    param = torch.nn.Parameter(torch.eye(3))
    opt = oo.POGO([param], base=oo.BB())
    param.grad = 1e10 * torch.eye(3)
    param.grad[0, 1] = 1e-29
    opt.step()
    assert opt.drift()[0].skipped == 0
    assert torch.isfinite(param).all()


@pytest.mark.parametrize("seed", range(3))
def test_by_default_it_stays_on_the_manifold(seed):
    for problem in (pca(75, 100, "code", seed), pca(75, 100, "paper", seed), procrustes(50, seed)):
        x = torch.nn.Parameter(problem.start.clone())
        opt = oo.POGO([x], base=oo.BB())
        for _ in range(60):
            x.grad = problem.gradient(x.detach())
            opt.step()
            assert float(torch.linalg.matrix_norm(x.detach() @ x.detach().mT - torch.eye(len(x)), 2)) < 1.6e-6


def test_a_group_is_told_the_landing_its_base_asks_for():
    one, two, three, four = (point(4, 6, seed=seed) for seed in range(4))
    groups = [
        {"params": [one]},
        {"params": [two], "base": oo.VAdam(), "lr": 0.1},
        {"params": [three], "landing": "safe"},
        {"params": [four], "landing": None},
    ]
    opt = oo.POGO(groups, base=oo.BB())
    assert [group["landing"] for group in opt.param_groups] == ["strict", "safe", "safe", "strict"]
    assert oo.POGO([one], 0.1).param_groups[0]["landing"] == "safe"


@pytest.mark.parametrize("landing", ["half", "root", "argmin", "newton-schulz"])
def test_landings_that_do_not_clip_are_refused(landing):
    with pytest.raises(ValueError, match=f"'{landing}' does not clip leaps.*BB.*'strict' or 'safe'"):
        oo.POGO([point(4, 6)], base=oo.BB(), landing=landing)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_equivariance(dtype):
    """X → O₁XO₂ with the function transformed alike: the iterates transform alike."""
    one = point(4, 6, dtype=dtype)
    left, right = point(4, 4, dtype=dtype, seed=1).detach(), point(6, 6, dtype=dtype, seed=2).detach()
    two = torch.nn.Parameter(left @ one.detach() @ right)
    a = torch.randn(6, 6, dtype=dtype)
    a = a @ a.mH + torch.diag(torch.linspace(1, 20, 6)).to(dtype)
    opts = [oo.POGO([x], base=oo.BB()) for x in (one, two)]
    for _ in range(50):
        one.grad = -one.detach() @ a
        two.grad = -two.detach() @ (right.mH @ a @ right)
        for opt in opts:
            opt.step()
    # 1e-7: near the optimum the quotients amplify rounding, and the step lengths of the last digits differ
    torch.testing.assert_close(left @ one.detach() @ right, two.detach(), rtol=0, atol=1e-7)
