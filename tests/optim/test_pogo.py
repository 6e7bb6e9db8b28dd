"""POGO beyond the contract: precision, schedules of its base, telemetry."""

import pytest
import torch
from torch.optim import lr_scheduler

import orthoptim as oo
from orthoptim import stiefel
from tests.conformance.methods import point, set_gradients, steps


def procrustes(n=16):
    """f(X) = ‖AX − B‖²/2p with B = AX* + a little noise, so that the optimum is not zero."""
    a = torch.randn(n, n, dtype=torch.float64)
    b = a @ point(n, n, dtype=torch.float64, seed=7).detach() + 0.02 * torch.randn(n, n, dtype=torch.float64)
    return lambda x: (a.to(x.dtype) @ x - b.to(x.dtype)).square().sum() / (2 * n)


def train(f, param, count=600, lr=0.05):
    opt = oo.POGO([param], lr, oo.SGD(momentum=0.5))
    for _ in range(count):
        opt.zero_grad()
        f(param.float()).backward()
        opt.step()
    with torch.no_grad():
        # what has been learned is in the master copy; the parameter is its rounding
        return float(f(opt.state[param].get("master", param)))


def test_bfloat16_parameters_reach_the_loss_of_float32_ones():
    f = procrustes()
    full = train(f, point(16, 16))
    half = train(f, point(16, 16, dtype=torch.bfloat16))
    assert abs(half - full) <= 0.05 * full


def test_without_a_master_copy_bfloat16_stalls():
    """Why there is one: the same steps, rounded to bfloat16 after each, stop far above."""
    f = procrustes()
    full = train(f, point(16, 16))
    x = point(16, 16)
    for _ in range(600):
        (g,) = torch.autograd.grad(f(x), x)
        step = stiefel.pogo_step(x.detach(), g, 0.05, stiefel.policy("safe"))
        x.data = step.x.bfloat16().float()
    assert float(f(x)) > 1.5 * full


def test_compiles_to_machine_code_and_takes_a_scheduled_lr():
    """The default backend, with the rest of a model in the same step, and lr a tensor that changes."""
    one, two = ([point(4, 6), point(3, 3, 3, seed=1), torch.nn.Parameter(torch.ones(5))] for _ in range(2))
    opts = [
        oo.POGO([{"params": p[:2]}, {"params": p[2:], "algorithm": "adamw"}], torch.tensor(0.1)) for p in (one, two)
    ]
    torch._dynamo.reset()
    compiled = torch.compile(opts[0].step, fullgraph=True)
    for t in range(3):
        set_gradients(one, t)
        set_gradients(two, t)
        compiled()
        opts[1].step()
        for opt in opts:
            opt.param_groups[0]["lr"].mul_(0.5)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


def test_one_cycle_schedules_the_momentum_of_the_base():
    params = [point(4, 6)]
    for base, key in ((oo.SGD(momentum=0.9), "momentum"), (oo.VAdam(), "betas")):
        opt = oo.POGO(params, 0.1, base)
        schedule = lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=10)
        seen = set()
        for t in range(5):
            steps(opt, params, 1, t)
            schedule.step()
            seen.add(opt.param_groups[0][key])
        assert len(seen) > 2


def test_clipped_steps_are_counted():
    params = [point(3, 4, 6)]
    opt = oo.POGO(params, 1.0, oo.SGD())
    set_gradients(params)
    params[0].grad[0] *= 1e-3
    params[0].grad[1:] *= 1e3
    opt.step()
    (drift,) = opt.drift()
    assert drift.clipped == 2
    assert drift.skipped == 0
    assert opt.state[params[0]]["clipped"].tolist() == [0, 1, 1]
    assert drift.max_distance >= drift.mean_distance


def test_drift_before_any_step():
    (drift,) = oo.POGO([point(4, 6)], 0.1).drift()
    assert drift.matrices == 1
    assert drift.max_distance < 1e-6
    assert drift.skipped == drift.clipped == 0


@pytest.mark.parametrize("options", [{"landing": "soft"}, {"landing": "newton-schulz", "landing_steps": 0}])
def test_bad_landing(options):
    with pytest.raises(ValueError, match="Invalid landing"):
        oo.POGO([point(4, 6)], 0.1, **options)


def test_options_per_group():
    one, two = point(4, 6), point(4, 6, seed=1)
    opt = oo.POGO(
        [{"params": [one]}, {"params": [two], "landing": "strict", "base": oo.SGD(momentum=0.5), "lr": 0.2}], lr=0.1
    )
    assert opt.param_groups[0]["base"] == "vadam"
    assert opt.param_groups[0]["betas"] == (0.9, 0.999)
    assert opt.param_groups[1]["base"] == "sgd"
    assert opt.param_groups[1]["momentum"] == 0.5
    assert "betas" not in opt.param_groups[1]
    steps(opt, [one, two], 3)
    assert set(opt.state[one]) == {"step", "num_updates", "clipped", "rescued", "exp_avg", "exp_avg_sq"}
    assert set(opt.state[two]) == {"step", "num_updates", "clipped", "rescued", "momentum_buffer"}


def test_a_base_of_ones_own():
    """The extension point: a name, what it keeps, a pure function."""

    class Sign(oo.Base):
        name = "sign"

        def __init__(self, scale: float = 1.0):
            super().__init__(scale=scale)

        @staticmethod
        def advance(grad, state, t, **hyperparameters):
            return hyperparameters["scale"] * grad.sgn(), {}

    param = point(4, 6)
    opt = oo.POGO([param], 0.1, Sign(0.5))
    set_gradients([param])
    expected = stiefel.pogo_step(param.detach(), 0.5 * param.grad.sgn(), 0.1, stiefel.policy("safe")).x
    opt.step()
    torch.testing.assert_close(param.detach(), expected)
    assert opt.param_groups[0]["base_scale"] == 0.5  # "scale" is σ


@pytest.mark.parametrize("shape", [(8, 1), (1, 8), (3, 8, 1)])
def test_a_single_column_steps(shape):
    """Its matrices are a row whose stride is that of a column, though the memory is contiguous."""
    x = torch.nn.Parameter(oo.orthogonalize_(torch.ones(shape)))
    opt = oo.POGO([x], lr=0.1)
    x.grad = torch.arange(1.0, 1 + x.numel()).view(shape)
    before = x.detach().clone()
    opt.step()
    assert not torch.equal(x, before)
    assert oo.distance(x).max() < 1e-6
